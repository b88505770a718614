// Numbers as readers like them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return Number.isFinite(value) ? whole.format(value) : "–";
}

export function percent(value, digits = 1) {
  return Number.isFinite(value) ? `${(100 * value).toFixed(digits)} %` : "–";
}

export function decimal(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

export function short(value) {
  if (!Number.isFinite(value)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

export function bits(value) {
  const text = short(value);
  return /[kMG]$/.test(text) ? `${text}bit` : `${text} bit`;
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}
