"""`dada peer`: run one peer of a real network."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dada import atomic
from dada.cli.console import OUTPUT, AsJson, GraphOption, GraphRule, StepOption, print_json, stdout

app = typer.Typer(no_args_is_help=True, help="Run one peer of a network that learns without a server.")

# Share of the largest reported sample counts that peers ignore.
DISTRUST = 0.2

TaskOption = Annotated[
    Literal["auto", "classes", "numbers"],
    typer.Option("--task", help="What the label column holds; auto: numbers if it has more than 20 different ones."),
]

HomeFolder = Annotated[
    Path, typer.Option("--home", envvar="DADA_HOME", help="Folder of this peer: key, network file, state.")
]


@app.command()
def summarise(
    data: Annotated[Path, typer.Argument(help="Your samples, CSV or Parquet.", show_default=False)],
    label: Annotated[str, typer.Option(help="Column with the label.", show_default=False)],
    output: Annotated[Path, typer.Option(*OUTPUT, help="The summary file to write.")] = Path("summary.json"),
    onto: Annotated[Path | None, typer.Option(help="Summary file of other users; yours is added to it.")] = None,
    task: TaskOption = "auto",
    points: Annotated[int, typer.Option(min=1, help="Largest number of quantiles per feature.")] = 64,
) -> None:
    """Write means, spreads and a few quantiles of your features, so that a network's base predictors fit the data.

    The file contains no sample, and no quantile of fewer than five rows. Give it to the creator of the network, or to
    the next user, who adds their own rows with --onto; then only that user sees yours alone.

    **Examples**

    - `dada peer summarise mine.csv --label came -o mine.json`
    - `dada peer summarise mine.csv --label came --onto passed.json -o next.json`
    """
    from dada.cli.new_networks import SummaryFile, read_summary

    summary = SummaryFile.of(data, label, points, task)
    summary = summary if onto is None else read_summary(onto).merged(summary)
    summary.write(output)
    stdout().print(
        f"{output}: {len(summary.features)} features, {summary.summary.count} rows of {summary.users} users."
    )


@app.command("new-network")
def new_network(
    file: Annotated[Path, typer.Argument(help="The network file to write.", show_default=False)],
    model: Annotated[
        Path | None, typer.Option(help="Fitted model from which to take base predictors, target and settings.")
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="Table from which to take columns and ranges; its rows are not stored.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label, in the table of --like.")] = None,
    task: TaskOption = "auto",
    feature: Annotated[
        list[str] | None, typer.Option(help="A feature and its range, as name:low:high; once per feature.")
    ] = None,
    classes: Annotated[str | None, typer.Option(help="The labels, as no,yes or low,middle,top.")] = None,
    numbers: Annotated[str | None, typer.Option(help="Range of the numbers to predict, as low:high.")] = None,
    class_weights: Annotated[str | None, typer.Option(help="Weight of each class, as 1,3, in their order.")] = None,
    summary: Annotated[
        list[Path] | None, typer.Option(help="A file of `dada peer summarise`; several are merged.")
    ] = None,
    stumps: Annotated[
        int,
        typer.Option(min=0, help="Decision stumps per feature; 0 for the features themselves, as private rows need."),
    ] = 10,
    loss: Annotated[
        str | None, typer.Option(help="The loss; by default adaboost for two classes, logistic for more, or squared.")
    ] = None,
    beta: Annotated[float | None, typer.Option(min=1e-6, help="Largest l1 norm of a model; 10 for adaboost.")] = None,
    mu: Annotated[float | None, typer.Option(min=0.0, help="Coupling strength; by default peers agree on it.")] = None,
    predictors: Annotated[
        Literal["auto", "trees", "boosted"],
        typer.Option(
            help="Base predictors; trees: peers grow small trees and send them, next to linear predictors; boosted: "
            "they grow trees with each other, whose leaves have values of each peer's own."
        ),
    ] = "auto",
    most_rows: Annotated[
        int | None, typer.Option(min=1, help="A bound of the rows of one user; peers that claim more count as this.")
    ] = None,
    rate: Annotated[float, typer.Option(min=1e-3, help="Wake-ups per peer and second.")] = 1.0,
    graph: Annotated[GraphRule | None, GraphOption.__metadata__[0]] = None,
    step: StepOption = "block",
    private: Annotated[
        bool, typer.Option("--private", help="Put a new secret into the file: only its holders can join.")
    ] = False,
    members: Annotated[
        bool, typer.Option("--members", help="Only peers that you admit can join; writes your key beside the file.")
    ] = False,
) -> None:
    """Write the file that all peers of a new network need.

    It contains the settings, the names and ranges of features, the labels and the base predictors, but no sample. Give
    the ranges on the command line or take them from a table; all peers then see its smallest and largest values, and
    the frequent values of text columns. Users' summaries give stumps at quantiles and linear predictors. A fitted model
    gives all that it was fitted with: its peers learn what its users learned.

    **Examples**

    - `dada peer new-network net.json --feature age:0:100 --feature income:0:200000 --classes no,yes`
    - `dada peer new-network net.json --like mine.csv --label came --private`
    - `dada peer new-network net.json --like mine.csv --label came --members`
    - `dada peer new-network net.json --summary ann.json --summary bob.json`
    - `dada peer new-network net.json --model people.dada`
    - `dada peer new-network net.json --like mine.csv --label came --predictors trees`
    - `dada peer new-network net.json --like mine.csv --label came --predictors boosted`
    """
    from dada.cli import peer_tables as tables

    guard: dict[str, Any] = {"vet": True, "trust_largest": DISTRUST}
    given: dict[str, Any] = {
        name: value for name, value in (("loss", loss), ("beta", beta), ("mu1", mu)) if value is not None
    }
    has_trees, is_boosted = predictors == "trees", predictors == "boosted"
    if (has_trees or is_boosted) and (model is not None or step != "block"):
        raise ValueError(
            f"--predictors {predictors} needs --step block, and no --model: peers grow the trees themselves"
        )
    if is_boosted and loss not in (None, "logistic", "squared"):
        raise ValueError("boosted trees learn the logistic loss of classes and the squared loss of numbers: no --loss")
    stumps = 0 if has_trees or is_boosted else stumps
    if model is not None:
        from dada.cli.new_networks import network_of_model
        from dada.cli.pipelines import only_model
        from dada.estimators.files import load_model

        peers_model = only_model(load_model(model), model)
        network = network_of_model(peers_model, rate, graph, private=private, **guard, **given)
    else:
        if summary:
            from dada.cli.new_networks import read_all

            merged = read_all(summary)
            columns, fixed = merged.columns, merged.predictors(stumps)
            trees = merged.trees if has_trees else None
            boosting = merged.boosting if is_boosted else None
        else:
            if like is not None:
                columns = tables.columns_like(like, label, task)
            else:
                columns = tables.columns_by_hand(feature or [], classes, numbers)
            fixed = tables.predictors_by_range(columns, stumps)
            trees = tables.trees_by_range(columns) if has_trees else None
            boosting = tables.boosting_by_range(columns) if is_boosted else None
        from dada.peer.inputs import usual_settings

        usual_loss = tables.default_loss(columns.target)
        loss = loss or ("logistic" if is_boosted and columns.target.classes else usual_loss)
        strength = tables.default_strength(columns.target, loss)
        if mu is not None or graph == "distance":
            del strength["mu_per_confidence"]
        settings = {"loss": loss, **strength, **given, **guard, **usual_settings(graph or "evidence", step)}
        rhythm = tables.rhythm_of(settings, rate)
        network = tables.network_for(columns, fixed, settings, rhythm, private, trees, boosting)
    if class_weights is not None:
        network = tables.with_class_weights(network, class_weights)
    if most_rows is not None:
        network = tables.with_most_rows(network, most_rows)
    if members:
        from dada.net.network_file import Founder

        kind = f"open to peers that you admit; {Founder.create(network, file).key} is your key, keep it to yourself"
    else:
        network.write(file)
        holders = "private: anybody with the file can join, so give it to invited peers only"
        kind = holders if private else "open to anybody"
    more = {"trees": " and the trees of all peers", "boosted": " and boosted trees"}.get(predictors, "")
    size = f"{network.coupling.size} base predictors{more}"
    stdout().print(f"{file}: {len(network.features)} features, {size}; {kind}.")


@app.command()
def init(
    home: HomeFolder = Path("peer"),
    network: Annotated[Path | None, typer.Option(help="The network file.")] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="Set a damaged state aside, and start again with the same identity.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(min=1e-3, help="Protect your data with this budget.")] = None,
    protects: Annotated[
        Literal["labels", "rows", "users"],
        typer.Option(help="With --epsilon: what is protected, the labels, whole rows, or all rows of a user."),
    ] = "labels",
    secure_sum: Annotated[
        bool, typer.Option("--secure-sum", help="With --protects rows: others see sums of peers' statistics only.")
    ] = False,
    rows_per_user: Annotated[
        int, typer.Option(min=0, help="With --protects users: rows of each user that count at most, for all peers.")
    ] = 0,
    group: Annotated[
        str, typer.Option(help="With --secure-sum: your public group, such as a city; others see the sums of groups.")
    ] = "",
    peers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Peers that will protect rows, if more than the 30 that one peer meets; of a secure sum, at least.",
        ),
    ] = 0,
    certificate: Annotated[
        str | None, typer.Option(help="Line that `dada peer admit` printed, for this or an existing peer.")
    ] = None,
) -> None:
    """Create the folder of a new peer: its key and the network file.

    A network of members admits this peer once its founder has made a certificate for the id that is printed.

    With --epsilon, other peers learn from labels that were flipped at random, once; the features are not protected. The
    model for predictions is learned from the true labels and never sent. With --protects rows, all that others receive
    are statistics of the rows with noise, made once; peers pool them, and each learns its model at home. With
    --secure-sum peers mask them, so that only their sum can be read, and the noise is divided among all: a smaller
    epsilon is enough. All peers of the network must choose the same. With --protects users as well, the noise hides all
    rows of a user: for networks of many hundred users.

    **Examples**

    - `dada peer init --network net.json`
    - `dada peer init --home ann --network net.json --epsilon 4`
    - `dada peer init --home ann --network net.json --epsilon 4 --protects rows`
    - `dada peer init --home ann --network net.json --epsilon 0.25 --protects rows --secure-sum`
    - `dada peer init --home ann --network net.json --epsilon 1 --protects rows --secure-sum --group Lille`
    - `dada peer init --home ann --recover`
    - `dada peer init --home ann --certificate dadacert1...`
    """
    from dada.net.home import Home
    from dada.net.iroh_transport import IrohSeal, new_secret_key, public_key
    from dada.net.store import set_aside

    place = Home(home)
    if recover:
        key, _ = place.read()
        with place.lock():
            kept = set_aside(place.state)
        stdout().print(f"The old state is kept as {kept}." if kept else "There was no state to recover from.")
    else:
        if network is not None:
            place.create(network, new_secret_key())
        elif certificate is None:
            raise ValueError("--network is needed: the file that `dada peer new-network` wrote")
        key, described = place.read()
        if epsilon is not None:
            place.protect(epsilon, protects, peers, secure_sum, rows_per_user, group)
        if certificate is not None:
            place.write_certificate(certificate, described.membership(IrohSeal(key)), public_key(key))
    stdout().print(f"Peer {public_key(key).hex()} is in {home}.", soft_wrap=True)


NetworkArgument = Annotated[
    Path, typer.Argument(help="The network file, beside its founder's key.", show_default=False)
]
IdentityArgument = Annotated[str, typer.Argument(help="Id or ticket of the peer.", show_default=False)]


@app.command()
def admit(
    network: NetworkArgument,
    peer: IdentityArgument,
    days: Annotated[int, typer.Option(min=0, help="Days until the certificate expires; 0: never.")] = 0,
) -> None:
    """Admit a peer to a network that you founded: prints its certificate.

    The peer needs it once, with `dada peer init --certificate`. It is of no use to any other peer.

    **Examples**

    - `dada peer admit net.json 73896625bf05...`
    - `dada peer admit net.json 73896625bf05... --days 90`
    """
    from dada.net.network_file import Founder

    typer.echo(Founder(network).admit(_identity(peer), days))


@app.command()
def revoke(
    network: NetworkArgument,
    peer: IdentityArgument,
    home: Annotated[
        Path | None, typer.Option(envvar="DADA_HOME", help="Folder of a peer, running or not, that sends the list on.")
    ] = None,
) -> None:
    """Exclude a member of a network that you founded: writes the next list of revoked members.

    Any one peer of the network sends the list to all others. They drop the member for good.

    **Examples**

    - `dada peer revoke net.json 73896625bf05... --home ann`
    """
    from dada.net.home import Home
    from dada.net.network_file import Founder

    founder = Founder(network)
    n_excluded = founder.revoke(_identity(peer))
    stdout().print(f"{founder.list}: {n_excluded} excluded.", soft_wrap=True)
    if home is None:
        stdout().print("Copy it into the folder of any peer of the network, under the name `revoked`.", soft_wrap=True)
    else:
        place = Home(home)
        place.read()
        atomic.write_bytes(place.revoked, founder.list.read_bytes(), private=True)


@app.command("run")
def run_peer(
    home: HomeFolder = Path("peer"),
    data: Annotated[
        Path | None, typer.Option(help="Your samples, CSV or Parquet; needed in the first run only.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label; needed with --data.")] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add the samples of --data to those of earlier runs, instead of replacing.")
    ] = False,
    weight: Annotated[
        str | None, typer.Option(help="Column with the weight of each sample; equal if not given.")
    ] = None,
    join: Annotated[list[str] | None, typer.Option(help="Ticket of any peer of the network; may be repeated.")] = None,
    listen: Annotated[
        str, typer.Option(help="Address and port to listen at; other machines cannot reach loopback addresses.")
    ] = "127.0.0.1:0",
    relay: Annotated[
        bool, typer.Option("--relay", help="Use iroh's public relays, which reach peers behind routers.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="Id of an admitted peer; may be repeated. All others are refused.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=1e-3, help="Wake-ups per second, if not the network's.")] = None,
    half_life: Annotated[
        float | None,
        typer.Option(min=0.01, help="New tables after which half of the older samples are dropped."),
    ] = None,
    leave: Annotated[bool, typer.Option("--leave", help="When stopped, leave the network instead of pausing.")] = False,
    journal: Annotated[
        bool, typer.Option("--journal", help="Record every input of this peer, for dada replay; contains your samples.")
    ] = False,
) -> None:
    """Run this peer until Ctrl-C; prints a ticket with which others can join.

    **Examples**

    - `dada peer run --data mine.parquet --label came`
    - `dada peer run --data mine.csv --label came --join dada1...`
    - `dada peer run --listen 0.0.0.0:4040`
    """
    from dada.cli import peer_tables as tables
    from dada.net.home import Home
    from dada.net.network_file import read_ticket
    from dada.net.process import LEAN_ENVIRONMENT, RunOptions, arguments

    place = Home(home)
    place.read()
    with place.lock():
        if data is not None:
            if label is None:
                raise ValueError("--label is needed with --data: the column with the label")
            tables.store_samples(place, data, label, weight, append)
    place.read_samples()
    for ticket in join or ():
        read_ticket(ticket)
    options = RunOptions(
        listen=listen,
        relay=relay,
        join=tuple(join or ()),
        allowed=frozenset(_peer_id(text) for text in allow) if allow else None,
        wakeups_per_s=rate,
        leave=leave,
        journal=journal,
        half_life=half_life,
    )
    # This process has loaded table readers; a fresh one in its place is smaller.
    line = arguments(place, options)
    os.execve(line[0], line, {**os.environ, **LEAN_ENVIRONMENT})


@app.command("add-rows")
def add_rows(
    data: Annotated[Path, typer.Argument(help="New samples, CSV or Parquet.", show_default=False)],
    label: Annotated[str, typer.Option(help="Column with the label.", show_default=False)],
    home: HomeFolder = Path("peer"),
    weight: Annotated[
        str | None, typer.Option(help="Column with the weight of each sample; equal if not given.")
    ] = None,
) -> None:
    """Give this peer new samples. If it is running, it learns from them within seconds, without a restart.

    Its model and its neighbours stay. With `dada peer run --half-life`, older samples are dropped in time.

    **Examples**

    - `dada peer add-rows new.csv --label came`
    - `dada peer add-rows today.parquet --home ann --label came`
    """
    from dada.cli.peer_tables import read_rows
    from dada.net.home import Home

    place = Home(home)
    _, network = place.read()
    place.add_rows(read_rows(data, label, network, weight))
    when = "the running peer takes them in now" if place.is_running() else "the peer takes them in when it runs"
    stdout().print(f"The rows of {data} are in {place.inbox}; {when}.", soft_wrap=True)


@app.command()
def status(home: HomeFolder = Path("peer"), as_json: AsJson = False) -> None:
    """Show the status of a peer: model, neighbours, links, messages."""
    from dada.net.home import Home

    place = Home(home)
    place.read()
    found = place.read_status()
    if as_json:
        print_json(found)
    elif "id" not in found:
        stdout().print(f"The peer in {home} has never run.")
    else:
        for name, value in _lines(found, place.read_names()):
            stdout().print(f"[dim]{name:>12}[/dim]  {value}", soft_wrap=True, highlight=False)


def _lines(status: dict[str, Any], names: dict[str, str]) -> list[tuple[str, str]]:
    from dada.net.home import privacy_text, shown
    from dada.net.network_file import is_for_one_machine, read_ticket

    age_s = time.time() - status["time"]
    lines = [
        ("peer", status["id"]),
        ("process", f"{status['pid']}, running" if status["running"] else f"stopped, last seen {age_s:.0f} s ago"),
        ("samples", str(status["samples"])),
        ("model", f"{status['model_size']} base predictors after {status['model_updates']} updates"),
        ("peers", f"{status['known_peers']} known, {status['links']} linked, {len(status['neighbours'])} neighbours"),
        ("messages", f"{status['messages_sent']} sent, {status['messages_received']} received"),
        ("on the wire", f"{status['wire_bytes'] / 1e6:.2f} MB sent"),
        ("refused", f"{status['messages_refused']} messages, {sum(status['links_refused'].values())} links"),
    ]
    lines += [("privacy", text) for text in privacy_text(status)]
    if trees := status.get("trees"):
        sent = f"{trees['sent_bytes'] / 1e3:.1f} kB sent"
        lines.append(("trees", f"{trees['alive']} of {trees['growers']} peers, {trees['used']} in use here, {sent}"))
    if boosting := status.get("boosting"):
        sent = f"{boosting['sent_bytes'] / 1e3:.1f} kB sent"
        growers = f"{boosting['growers']} growers, {boosting['led']} led by this peer"
        lines.append(("boosted trees", f"{boosting['trees']} of {growers}, {sent}"))
    ordered = sorted(status["neighbours"].items(), key=lambda item: -item[1])
    lines += [("neighbour", f"{shown(peer, names)} with weight {weight:.3g}") for peer, weight in ordered]
    lines += [("linked", shown(peer, names)) for peer in status["round_trips_ms"] if peer not in status["neighbours"]]
    lines += [
        ("unreachable", f"{shown(peer, names)}: {reason}") for peer, reason in status.get("unreachable", {}).items()
    ]
    lines += [("ticket", status["ticket"])]
    is_local = is_for_one_machine(read_ticket(status["ticket"]))
    return [*lines, ("", "works on this machine only: see --listen and --relay")] if is_local else lines


@app.command()
def name(
    peer: Annotated[
        str,
        typer.Argument(
            help="Ticket or id of another peer; of one in the status, its first digits.", show_default=False
        ),
    ],
    nickname: Annotated[str, typer.Argument(help="Its nickname; empty to remove it.", show_default=False)],
    home: HomeFolder = Path("peer"),
) -> None:
    """Give another peer a nickname, which only you see: in the status at once, in the log from the next start on.

    **Examples**

    - `dada peer name dada1... Bob`
    - `dada peer name 73896625bf Bob`
    """
    from dada.net.home import Home

    place = Home(home)
    place.read()
    status = place.read_status()
    seen = {other for group in ("neighbours", "round_trips_ms", "unreachable") for other in status.get(group, ())}
    found = [other for other in sorted(seen) if other.startswith(peer)]
    chosen = found[0] if len(found) == 1 else peer
    place.give_name(_identity(chosen), nickname)


@app.command()
def predict(
    data: Annotated[Path, typer.Option(help="The samples to predict, CSV or Parquet.")],
    home: HomeFolder = Path("peer"),
    out: Annotated[Path | None, typer.Option(*OUTPUT, help="Write a CSV file instead of printing.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict new samples with this peer's model: a label and its value, or a number. The peer may be running.

    **Examples**

    - `dada peer predict --data new.csv`
    - `dada peer predict --home ann --data new.parquet --out labels.csv`
    """
    from dada.cli.peer_tables import predict_table
    from dada.net.home import Home

    columns = predict_table(Home(home), data)
    if as_json:
        print_json({f"{name}s": values for name, values in columns.items()})
        return
    lines = [",".join(columns)]
    lines += [",".join(_cell(value) for value in row) for row in zip(*columns.values(), strict=True)]
    text = "\n".join(lines) + "\n"
    if out is not None:
        atomic.write_bytes(out, text.encode())
        stdout().print(f"{out}: {len(lines) - 1} predictions.")
    else:
        typer.echo(text, nl=False)


def _cell(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value


def _identity(text: str) -> bytes:
    """The id of a peer, given as such or as a ticket."""
    from dada.net.network_file import TICKET_PREFIX, read_ticket

    return read_ticket(text).peer if text.startswith(TICKET_PREFIX) else _peer_id(text)


def _peer_id(text: str) -> bytes:
    try:
        peer = bytes.fromhex(text)
    except ValueError:
        peer = b""
    if len(peer) != 32:
        raise ValueError(f"the id of a peer has 64 hexadecimal digits (see `dada peer status`), got {text!r}")
    return peer
