// What if: tick tasks on and off, or drag weights, and see what the surrogate predicts.

const NORMAL_90 = 1.6448536269514722; // half the width of a 90% interval, in standard deviations

// The ends of a 90% interval; those of a rate or a loss lie within its bounds.
function ends(mean, std, target) {
  const [least, most] = target.bounds || [null, null];
  return [mean - NORMAL_90 * std, mean + NORMAL_90 * std].map((end) =>
    Math.min(Math.max(end, least ?? -Infinity), most ?? Infinity),
  );
}

class Explorer {
  constructor(report, state, changed) {
    this.report = report;
    this.state = state;
    this.changed = changed;
    this.surrogates = new Map();
    this.search = 0;
    this.build();
  }

  get target() {
    return this.report.targets[this.state.target];
  }

  surrogate(target = this.state.target) {
    if (!this.surrogates.has(target)) {
      this.surrogates.set(target, surrogateOf(this.report.doc.surrogates, target, this.report));
    }
    return this.surrogates.get(target);
  }

  // The controls; they stay while targets and subsets change.
  build() {
    const { report } = this;
    const size = el("input", {
      type: "number",
      id: "size",
      min: 1,
      max: report.K,
      value: this.usualSize(),
      "aria-label": "Size of the subset",
    });
    const button = (id, text, action, cls) => el("button", { type: "button", id, class: cls, onclick: action }, text);
    this.query = el("input", {
      type: "search",
      id: "chip-query",
      placeholder: "Find a task",
      "aria-label": "Find a task",
      oninput: () => this.filter(),
    });
    if (!report.binary) {
      byId("whatif-intro").textContent = "Choose any weights: the surrogate predicts what a run with them would give.";
    }
    const sets = report.binary
      ? [
          button("best", "Best of size", () => this.findBest(Number(size.value))),
          size,
          button("all", "All", () => this.set(new Float64Array(report.K).fill(1))),
          button("none", "None", () => this.set(new Float64Array(report.K))),
          button("invert", "Invert", () => this.set(this.state.subset.map((weight) => 1 - weight))),
        ]
      : [
          button("average", "Average of the runs", () => this.set(report.averageSubset())),
          button("best-run", "Best run", () => this.set(report.subset(report.bestRun(this.state.target)))),
        ];
    const controls = el(
      "div",
      {},
      el(
        "div",
        { class: "tools", role: "group", "aria-label": "Choose a subset" },
        button("recommended", "Recommended", () => this.set(this.recommended()), "main"),
        sets,
      ),
      el(
        "div",
        { class: "tools" },
        this.query,
        el("span", { class: "spread" }),
        button("share", "Copy link", () => this.share()),
      ),
      (this.list = el("div", { class: report.binary ? "chips" : "weights", role: "group", "aria-label": "Tasks" })),
      el(
        "p",
        { class: "note", id: "delta-note" },
        report.binary
          ? "The number beside a task is what switching it would change, as things stand."
          : report.total === null
            ? "Weights stay within the range of the runs, each of them and their total."
            : `Moving one weight scales the others, so that the total stays ${Number(report.total.toPrecision(4))}.`,
      ),
    );
    this.result = el("div", { class: "result" });
    fill("explorer", el("div", { class: "explorer" }, controls, this.result));
    this.buildList();
  }

  buildList() {
    const { report, state } = this;
    const longest = Math.max(...report.tasks.map((task) => textWidth(task, 15)));
    this.list.style.setProperty("--chip", `${Math.round(longest + 110)}px`); // with its box and its number
    this.inputs = new Array(report.K);
    this.deltas = new Array(report.K);
    this.rows = report.ranking(state.target).map((k) => {
      const name = el("span", { class: "name", title: report.tasks[k] }, named(report.tasks[k]));
      if (report.binary) {
        this.inputs[k] = [el("input", { type: "checkbox", onchange: (e) => this.toggle(k, e.target.checked) })];
        this.deltas[k] = el("span", { class: "delta" });
        return [k, el("label", { class: "chip" }, this.inputs[k], name, this.deltas[k])];
      }
      const [least, most] = report.total === null ? [report.lowest[k], report.highest[k]] : [0, report.total];
      if (most >= 1e5) this.list.style.setProperty("--number", "9rem"); // amounts of data have many digits
      const one = (type) =>
        el("input", {
          type,
          min: least,
          max: most,
          step: type === "range" ? (most - least) / 500 || "any" : "any",
          "aria-label": report.tasks[k],
          oninput: (e) => this.weigh(k, Number(e.target.value), e.target),
        });
      this.inputs[k] = [one("range"), one("number")];
      return [k, el("div", { class: "weight" }, name, this.inputs[k])];
    });
    put(
      this.list,
      this.rows.map(([, row]) => row),
    );
    this.filter();
  }

  filter() {
    const wanted = this.query.value.toLowerCase();
    for (const [k, row] of this.rows) row.hidden = !this.report.tasks[k].toLowerCase().includes(wanted);
  }

  usualSize() {
    const best = this.recommended();
    return Math.max(1, Math.round(best.reduce((a, b) => a + b, 0)));
  }

  recommended() {
    return Float64Array.from(this.target.answer.selected);
  }

  // ---- changes ----

  set(subset) {
    this.search++;
    this.state.subset = subset;
    this.update();
    this.changed();
  }

  toggle(k, on) {
    const subset = this.state.subset.slice();
    subset[k] = on ? 1 : 0;
    this.set(subset);
  }

  weigh(k, weight, by) {
    if (!finite(weight)) return;
    const { total, lowest, highest } = this.report;
    const [least, most] = total === null ? [lowest[k], highest[k]] : [0, total];
    const subset = this.state.subset.slice();
    subset[k] = Math.min(Math.max(weight, least), most);
    this.typing = by;
    this.set(this.report.onBudget(subset, k));
    this.typing = null;
  }

  async findBest(size) {
    const surrogate = this.surrogate();
    if (!surrogate || !(size >= 1 && size <= this.report.K)) return;
    const mine = ++this.search;
    byId("best").disabled = true;
    const ranking = this.report.ranking(this.state.target);
    const sign = this.target.up ? 1 : -1;
    const found = await bestOfSize(
      surrogate,
      this.report.K,
      Math.round(size),
      sign,
      ranking,
      () => mine !== this.search,
    );
    byId("best").disabled = false;
    if (!found || mine !== this.search) return;
    this.set(found.subset);
    this.report.say(
      found.exact ? `The best of all subsets of ${size} tasks.` : `The best subset of ${size} tasks found by swaps.`,
    );
  }

  async share() {
    let done = true;
    try {
      await navigator.clipboard.writeText(location.href);
    } catch {
      done = false;
    }
    this.report.say(done ? "Link copied." : "The address of this page is the link: copy it from the address bar.");
    byId("share").textContent = done ? "Copied" : "See address bar";
    setTimeout(() => (byId("share").textContent = "Copy link"), 1800);
  }

  retarget() {
    this.search++;
    this.buildList();
    if (this.report.binary) byId("size").value = this.usualSize();
    this.update();
  }

  // ---- what is shown ----

  update() {
    const surrogate = this.surrogate();
    this.showInputs();
    if (!surrogate) {
      put(
        this.result,
        el(
          "p",
          { class: "warning" },
          "This page cannot compute predictions of this target. Use whence predict on the command line.",
        ),
      );
      return;
    }
    const position = surrogate.at(this.state.subset);
    this.mean = surrogate.mean(position);
    this.std = surrogate.ready ? surrogate.std(position) : NaN;
    this.showDeltas(surrogate, position);
    this.showResult(surrogate.ready);
    if (!surrogate.ready) {
      const { target } = this.state;
      surrogate.prepare().then(() => this.state.target === target && this.update());
    }
  }

  showInputs() {
    for (let k = 0; k < this.report.K; k++) {
      const weight = this.state.subset[k];
      for (const input of this.inputs[k]) {
        if (this.report.binary) input.checked = weight > 0;
        else if (input !== this.typing) input.value = input.type === "range" ? weight : Number(weight.toPrecision(4));
      }
    }
  }

  showDeltas(surrogate, position) {
    if (!this.report.binary) return;
    const places = Math.min(this.report.scorePlaces(this.state.target), 7);
    for (let k = 0; k < this.report.K; k++) {
      const other = surrogate.moved(position, k, this.state.subset[k] > 0 ? 0 : 1);
      const delta = surrogate.mean(other) - this.mean;
      const shown = number(delta, places, true);
      const none = Number(delta.toFixed(places)) === 0;
      this.deltas[k].textContent = shown;
      this.deltas[k].className = `delta ${none ? "dim" : delta > 0 === this.target.up ? "good" : "bad"}`;
    }
  }

  showResult(ready) {
    const { report, state, target } = this;
    const { places } = target.answer;
    const [low, high] = ends(this.mean, this.std, target);
    const interval = ready ? `90% interval ${span(low, high, places)}` : "interval: computing …";
    put(
      this.result,
      el("div", { class: "what" }, `Predicted ${target.name} (${target.direction})`),
      el(
        "output",
        { class: "big", id: "predicted", for: "explorer", "data-mean": this.mean, "data-std": this.std },
        number(this.mean, places),
      ),
      el(
        "div",
        { class: "what", id: "interval" },
        finite(this.std) || !ready ? interval : "no interval: this surrogate has none",
      ),
      this.picture(low, high),
      el(
        "p",
        { class: "subset" },
        el("b", {}, report.sizeInWords(state.subset)),
        ` ${report.subsetName(state.subset)}`,
      ),
      el("div", { class: "extra" }, this.comparisons()),
      this.outside(ready).map((sentence) => el("p", { class: "warning", role: "note" }, sentence)),
    );
  }

  // The prediction among the measured runs.
  picture(low, high) {
    const { report, state } = this;
    const values = report.values(state.target);
    const width = widthOf(this.result, 240) - 8;
    const [least, most] = extent([...values, this.mean, low, high]);
    const x = scale(least, most, 12, width - 12);
    const marks = ticks(least, most, 4);
    const parts = [
      xAxis(x, marks, 62, 5, tickPlaces(marks)),
      strip(Array.from(values), x, 58, { radius: 2.3, most: 8 }),
    ];
    if (finite(low)) {
      parts.unshift(
        svg("rect", { x: x(low), y: 8, width: x(high) - x(low), height: 50, rx: 4, fill: "var(--accent-wash)" }),
      );
    }
    parts.push(
      svg("line", { x1: x(this.mean), x2: x(this.mean), y1: 4, y2: 60, stroke: "var(--accent)", "stroke-width": 2.5 }),
    );
    return canvas(width, 80, "The prediction and its interval among the measured runs", parts);
  }

  comparisons() {
    const { report, state, target } = this;
    const { places } = target.answer;
    const than = (value, words) => {
      if (!finite(value)) return null;
      // Of the numbers as they are shown, so that they add up.
      const gain = (Number(this.mean.toFixed(places)) - Number(value.toFixed(places))) * (target.up ? 1 : -1);
      const same = gain === 0;
      const how = same ? "the same as" : gain > 0 ? "better than" : "worse than";
      return el(
        "div",
        { class: "note" },
        same ? "" : el("b", { class: gain > 0 ? "good" : "bad" }, `${number(Math.abs(gain), places)} `),
        `${how} ${words} (${number(value, places)})`,
      );
    };
    const measured = report.measured(state.subset, state.target);
    const { predicted, expected, selected } = target.answer;
    const recommended = state.subset.every((weight, k) => weight === selected[k]);
    return [
      recommended
        ? el(
            "div",
            { class: "note" },
            `Chosen as the best of many, so part of this is chance: expect ${number(expected.mean, places)} ` +
              `(${span(expected.low, expected.high, places)}).`,
          )
        : than(predicted, "the recommended subset"),
      than(target.answer.best_run, "the best measured run"),
      measured.length
        ? el(
            "div",
            { class: "note" },
            `Measured in ${counted(measured.length, "run")}: ${number(mean(measured), places)}`,
          )
        : null,
    ];
  }

  // Why this prediction is extrapolation, in sentences; empty where it is not.
  outside(ready) {
    const { report, state } = this;
    const { subset } = state;
    const found = [];
    const above = [];
    const below = [];
    for (let k = 0; k < report.K; k++) {
      const slack = 1e-9 + 0.02 * (report.highest[k] - report.lowest[k]);
      if (subset[k] > report.highest[k] + slack) above.push(report.tasks[k]);
      if (subset[k] < report.lowest[k] - slack) below.push(report.tasks[k]);
    }
    const [had, lacked] = report.binary ? ["had", "was without"] : ["had as much", "had as little"];
    if (above.length) found.push(`No run ${had} ${someOf(above, 4)}: this is extrapolation.`);
    if (below.length) found.push(`No run ${lacked} ${someOf(below, 4)}: this is extrapolation.`);
    const size = subset.reduce((a, b) => a + b, 0);
    const [least, most] = report.sizes;
    if (report.binary && size > most)
      found.push(`No run had more than ${counted(most, "task")}: this is extrapolation.`);
    if (report.binary && size < least)
      found.push(`No run had fewer than ${counted(least, "task")}: this is extrapolation.`);
    if (ready && !found.length && this.std > 1.02 * report.widestStd(state.target)) {
      found.push("This subset is farther from the runs than any that was held out: treat the prediction with care.");
    }
    return found;
  }
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// As some_of() of the command line.
function someOf(names, limit = 8) {
  const text = names.slice(0, limit).join(", ");
  return names.length > limit ? `${text} and ${names.length - limit} more` : text;
}
