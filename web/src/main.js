import { App } from "./app.js";

// The console, and tests, can look at the page through this name.
window.dada = new App();
