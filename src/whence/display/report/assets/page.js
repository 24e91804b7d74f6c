// The page: one state (target, subset, how the table is sorted), kept in the address, and the sections that show it.

const MOST_TARGETS = 25; // rows of the summary before "Show all"

class Page {
  constructor(doc) {
    this.report = new Report(doc);
    this.state = { target: 0, subset: null, sort: { by: "score", down: true }, query: "", all: false };
    this.actions = {
      openProfile: (task) => this.openProfile(task),
      retarget: (target) => this.retarget(target),
      toggle: (task, on) => this.explorer.toggle(task, on),
      explore: (subset) => this.explore(subset),
    };
    this.state.subset = Float64Array.from(this.report.targets[0].answer.selected);
    this.readAddress();
    this.explorer = new Explorer(this.report, this.state, () => this.writeAddress());
    this.controls();
    this.show();
    startTips();
    addEventListener("hashchange", () => this.readAddress() && this.show());
    let waiting;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.show(), 150);
    });
    if (location.hash.startsWith("#whatif;")) byId("whatif").scrollIntoView();
  }

  controls() {
    const { report } = this;
    const choice = byId("target");
    choice.append(...report.targets.map(({ name }, t) => el("option", { value: t }, name)));
    choice.addEventListener("change", () => this.retarget(Number(choice.value)));
    byId("target-label").hidden = report.T < 2;
    byId("task-query").addEventListener("input", (event) => {
      this.state.query = event.target.value;
      showTasks(report, this.state, this.actions.openProfile);
    });
    byId("theme").addEventListener("click", () => {
      const root = document.documentElement.style;
      const dark = root.colorScheme ? root.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.colorScheme = dark ? "light" : "dark";
    });
    // The address holds the what-if, so that links within the page scroll and leave it alone.
    for (const link of document.querySelectorAll('a[href^="#"]')) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        const section = document.querySelector(link.getAttribute("href"));
        section.scrollIntoView();
        section.tabIndex = -1;
        section.focus({ preventScroll: true });
      });
    }
    byId("profile").addEventListener("click", (event) => event.target === byId("profile") && byId("profile").close());
  }

  show() {
    const { report, state, actions } = this;
    byId("target").value = state.target;
    showAnswer(report, state, actions);
    this.explorer.retarget();
    showTasks(report, state, actions.openProfile);
    showHeat(report, state, actions);
    showPairs(report, state, actions);
    showTrust(report, state, actions);
    showNext(report, state, actions);
  }

  retarget(target) {
    if (target === this.state.target) return;
    this.state.target = target;
    this.show();
    this.writeAddress();
    this.report.say(`Showing ${this.report.targets[target].name}.`);
  }

  explore(subset) {
    this.explorer.set(subset);
    byId("whatif").scrollIntoView();
  }

  openProfile(task) {
    showProfile(this.report, this.state, task, pairsOf(this.report, this.state.target), this.actions);
  }

  // ---- the address: #whatif;target=NAME;tasks=HEX, or weights=… for mixtures ----

  writeAddress() {
    const { report, state } = this;
    const parts = ["#whatif"];
    if (report.T > 1) parts.push(`target=${encodeURIComponent(report.targets[state.target].name)}`);
    parts.push(
      report.binary
        ? `tasks=${toHex(state.subset)}`
        : `weights=${Array.from(state.subset, (w) => Number(w.toPrecision(6)))}`,
    );
    history.replaceState(null, "", parts.join(";"));
  }

  // Take over what the address says; false where it says nothing.
  readAddress() {
    const { report, state } = this;
    const given = new Map(
      location.hash
        .slice(1)
        .split(";")
        .slice(1)
        .map((part) => part.split(/=(.*)/s).slice(0, 2)),
    );
    const target = report.targets.findIndex(({ name }) => encodeURIComponent(name) === given.get("target"));
    if (target >= 0) state.target = target;
    const subset = report.binary ? fromHex(given.get("tasks"), report.K) : fromList(given.get("weights"), report.K);
    if (subset) state.subset = report.binary ? subset : report.onBudget(subset);
    else if (target >= 0) state.subset = Float64Array.from(report.targets[target].answer.selected);
    return target >= 0 || subset !== null;
  }
}

function toHex(subset) {
  let text = "";
  for (let k = 0; k < subset.length; k += 4) {
    text += [0, 1, 2, 3].reduce((sum, i) => sum + (subset[k + i] > 0 ? 8 >> i : 0), 0).toString(16);
  }
  return text;
}

function fromHex(text, tasks) {
  if (!text || text.length !== Math.ceil(tasks / 4) || /[^0-9a-f]/.test(text)) return null;
  return Float64Array.from({ length: tasks }, (_, k) => (parseInt(text[k >> 2], 16) >> (3 - (k & 3))) & 1);
}

function fromList(text, tasks) {
  const numbers = (text ?? "").split(",").map(Number);
  return numbers.length === tasks && numbers.every((w) => finite(w) && w >= 0) ? Float64Array.from(numbers) : null;
}

// ---- the answer ----

function showAnswer(report, state, actions) {
  const { name, direction, answer } = report.targets[state.target];
  const { places } = answer;
  const sentence = (phrases) =>
    el(
      "p",
      {},
      phrases.map(([text, role]) => (role ? el("b", { class: role }, text) : text)),
    );
  const sure = el("p", { class: answer.weak ? "warning" : "sure" }, answer.trust);
  fill("lead", answer.weak ? sure : null, sentence(answer.subset), sentence(answer.tasks), answer.weak ? null : sure);
  const tile = (label, big, small) =>
    el(
      "div",
      { class: "tile" },
      el("dt", {}, label),
      el("dd", {}, el("div", { class: "big" }, big), el("div", { class: "note" }, small)),
    );
  const { expected, everything } = answer;
  const tiles = [
    tile(
      "Recommended, expected",
      number(expected.mean, places),
      finite(expected.low) ? `90% interval ${span(expected.low, expected.high, places)}` : "no interval",
    ),
    tile(`Best of ${counted(answer.runs, "run")}`, number(answer.best_run, places), `measured; ${direction}`),
  ];
  if (finite(everything.value)) {
    tiles.push(
      tile("With all tasks", number(everything.value, places), everything.measured ? "measured" : "predicted"),
    );
  }
  const ceiling = report.doc.trust.ceiling.value[state.target];
  if (finite(answer.correlation)) {
    tiles.push(
      tile(
        "Rank correlation on held-out runs",
        number(answer.correlation),
        finite(ceiling) ? `1 is perfect; noise ceiling ${number(ceiling)}` : "1 is perfect, 0 is chance",
      ),
    );
  }
  fill("tiles", tiles);
  showSummary(report, state, actions);
  byId("found").textContent = `How the recommended subset was found: ${answer.how}.`;
}

// The answer for every target, one row each.
function showSummary(report, state, actions) {
  const holder = byId("summary");
  holder.hidden = report.T < 2;
  if (holder.hidden) return;
  const shown = state.allTargets ? report.targets : report.targets.slice(0, MOST_TARGETS);
  const showAll = () => {
    state.allTargets = true;
    showSummary(report, state, actions);
  };
  put(
    holder,
    el("h3", {}, "The answer for each target"),
    tableOf({
      id: "summary-table",
      caption: "The subset to use for each target",
      columns: [
        ["target", "names"],
        ["use", "names"],
        ["expected", "num"],
        ["90% interval", "num wide"],
        ["best run", "num wide"],
        ["rank corr.", "num wide"],
        ["trust", "verdict"],
      ],
      rows: shown.map(({ name, answer: { places, expected, ...answer } }, t) => [
        link(() => actions.retarget(t), named(name)),
        listed(answer.use),
        number(expected.mean, places),
        span(expected.low, expected.high, places),
        number(answer.best_run, places),
        number(answer.correlation),
        answer.level,
      ]),
      chosen: state.target,
    }),
    shown.length < report.T
      ? el("p", { class: "more" }, button({ id: "all-targets" }, showAll, `Show all ${report.T} targets`))
      : null,
  );
}

inflated("data").then((text) => (page = new Page(JSON.parse(text))));
