// The profile of a task: its score, the runs with and without it, its partners, its effect on every target.

function showProfile(report, state, task, partners, actions) {
  const { target } = state;
  const { attribution } = report.doc;
  const dialog = byId("profile");
  const e = report.effect(task, target);
  const places = report.scorePlaces(target);
  const name = report.tasks[task];
  const close = () => dialog.close();
  const inside = state.subset[task] > 0;
  const toggle = () => {
    actions.toggle(task, !inside);
    close();
  };
  put(
    dialog,
    el(
      "header",
      {},
      el("h2", { id: "profile-title" }, name),
      button({ class: "quiet", id: "profile-close", "aria-label": "Close" }, close, "✕"),
    ),
    el(
      "p",
      {},
      el("b", { class: WORD_CLASSES[e.verdict] }, attribution.words[e.verdict]),
      `: ${number(e.score, places, true)} (90% interval ${span(e.low, e.high, places, true)}) in ${report.targets[target].name}, `,
      `${attribution.what}.`,
    ),
    report.binary ? withAndWithout(report, target, task) : byWeight(report, target, task),
    partners ? partnersOf(report, task, partners, actions) : null,
    report.T > 1 ? onTargets(report, task) : null,
    report.binary
      ? el("p", {}, button({ id: "profile-toggle" }, toggle, `${inside ? "Take it out" : "Put it in"} in the explorer`))
      : null,
  );
  if (!dialog.open) dialog.showModal();
}

// The runs that had a task above those that did not.
function withAndWithout(report, target, task) {
  const values = report.values(target);
  const groups = [1, 0].map((wanted) => {
    const runs = [];
    values.forEach((value, i) => finite(value) && report.weights[i * report.K + task] === wanted && runs.push(i));
    return runs;
  });
  const width = Math.min(620, innerWidth - 90);
  const left = 74;
  const [least, most] = extent(values);
  const x = scale(least, most, left + 8, width - 10);
  const marks = ticks(least, most, 5);
  const { places } = report.targets[target].answer;
  const parts = [xAxis(x, marks, 152, 148, tickPlaces(marks))];
  groups.forEach((runs, row) => {
    const base = 70 + 74 * row;
    const own = runs.map((i) => values[i]);
    const tips = (i) => `run ${runs[i] + 1}: ${number(own[i], places)}\n${report.subsetName(report.subset(runs[i]))}`;
    parts.push(
      svg("text", { x: 0, y: base - 20, class: "ink" }, row ? "without" : "with"),
      svg("text", { x: 0, y: base - 5 }, counted(runs.length, "run")),
      strip(own, x, base, { radius: 2.8, most: 11, tips }),
    );
    if (!own.length) return;
    const at = x(mean(own));
    parts.push(
      svg("line", { x1: at, x2: at, y1: base - 64, y2: base + 2, stroke: "var(--accent)", "stroke-width": 2 }),
      svg("text", { x: at + 5, y: base - 54, class: "ink" }, `mean ${number(mean(own), places)}`),
    );
  });
  return el(
    "figure",
    {},
    canvas(width, 172, `Runs with and without ${report.tasks[task]}`, parts),
    el(
      "figcaption",
      {},
      "Measured runs, whatever else was in them; the score above takes the other tasks into account.",
    ),
  );
}

function byWeight(report, target, task) {
  const values = Array.from(report.values(target));
  const weights = values.map((_, i) => report.weights[i * report.K + task]);
  const width = Math.min(620, innerWidth - 90);
  const { places } = report.targets[target].answer;
  const [x0, x1] = extent(weights);
  const [y0, y1] = extent(values);
  const x = scale(x0, x1, 56, width - 10);
  const y = scale(y0, y1, 190, 8);
  const parts = [
    xAxis(x, ticks(x0, x1), 194, 186, tickPlaces(ticks(x0, x1))),
    yAxis(y, ticks(y0, y1, 4), 56, width - 66, tickPlaces(ticks(y0, y1, 4))),
  ];
  values.forEach(
    (value, i) =>
      finite(value) &&
      parts.push(
        svg("circle", {
          cx: x(weights[i]),
          cy: y(value),
          r: 3,
          class: "u",
          opacity: 0.6,
          "data-tip": `run ${i + 1}: weight ${weightText(weights[i])}, ${number(value, places)}`,
        }),
      ),
  );
  return el(
    "figure",
    {},
    canvas(width, 214, `Measured outcome by weight of ${report.tasks[task]}`, parts),
    el("figcaption", {}, `Measured ${report.targets[target].name} by the weight of ${report.tasks[task]}.`),
  );
}

function partnersOf(report, task, pairs, actions) {
  const own = pairs.list
    .filter((p) => p.a === task || p.b === task)
    .sort((p, q) => Math.abs(q.score) - Math.abs(p.score));
  const rows = own.slice(0, 6).map((p) => {
    const other = p.a === task ? p.b : p.a;
    return [
      link(() => actions.openProfile(other), named(report.tasks[other])),
      number(p.score, pairs.places, true),
      span(p.low, p.high, pairs.places, true),
      verdictCell(pairs.words, p),
    ];
  });
  return [el("h3", {}, "Strongest partners"), tableOf({ columns: [[], [null, "num"], [null, "num"], []], rows })];
}

function onTargets(report, task) {
  const rows = report.targets.slice(0, 12).map(({ name }, t) => {
    const e = report.effect(task, t);
    const score = number(e.score, report.scorePlaces(t), true);
    return [named(name), score, verdictCell(report.doc.attribution.words, e)];
  });
  return [
    el("h3", {}, "On each target"),
    tableOf({ columns: [[], [null, "num"], []], rows }),
    report.T > 12 ? el("p", { class: "note" }, `and ${report.T - 12} more targets`) : null,
  ];
}
