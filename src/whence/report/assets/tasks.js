// What each task does: bars with intervals, the profile of a task, and the map of tasks × targets.

const MOST_BARS = 40; // rows shown before somebody asks for all
const HEAT_TASKS = 60;
const HEAT_TARGETS = 60;

function showTasks(report, state, openProfile) {
  const { target } = state;
  const { attribution } = report.doc;
  const { name, direction } = report.targets[target];
  byId("tasks-intro").textContent =
    `${attribution.heading} scores for ${name} (${direction}): ${attribution.what}. Lines are 90% intervals; ` +
    `a task is unclear where its interval holds zero. Scores are ${attribution.how}.`;
  fill("tasks-legend", attribution.words.map((word, code) =>
    el("span", {}, el("i", { style: `background: var(--${["good", "bad", "dim"][code]})` }), word)));

  const places = report.scorePlaces(target);
  const effects = report.tasks.map((_, k) => ({ k, ...report.effect(k, target) }));
  const sign = report.targets[target].up ? 1 : -1;
  const keys = {
    task: (e) => report.tasks[e.k].toLowerCase(),
    score: (e) => sign * e.score,
    interval: (e) => e.high - e.low,
    verdict: (e) => -e.verdict,
  };
  const key = keys[state.sort.by];
  effects.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (state.sort.down ? -1 : 1));
  const wanted = state.query.toLowerCase();
  const matching = effects.filter((e) => report.tasks[e.k].toLowerCase().includes(wanted));
  const ends = MOST_BARS / 2;
  const cut = !state.all && matching.length > MOST_BARS;
  const shown = cut ? [...matching.slice(0, ends), null, ...matching.slice(-ends)] : matching;

  const [least, most] = extent(effects.flatMap((e) => [e.low, e.high, e.score, 0]), 0.02);
  const percent = (value) => ((value - least) / (most - least)) * 100;
  const header = (by, label, cls) => el("th", {
    scope: "col", class: cls, "aria-sort": state.sort.by === by ? (state.sort.down ? "descending" : "ascending") : null,
  }, el("button", { type: "button", "data-sort": by }, label));
  const rows = shown.map((e) => {
    if (e === null) return el("tr", {}, el("td", { colspan: 5, class: "dim" }, `… ${matching.length - MOST_BARS} between`));
    const word = attribution.words[e.verdict];
    const tip = `${report.tasks[e.k]}: ${number(e.score, places, true)} (${span(e.low, e.high, places, true)}), ${word}`;
    return el("tr", {},
      el("td", { class: "name" }, el("button", { type: "button", class: "link", onclick: () => openProfile(e.k) }, report.tasks[e.k])),
      el("td", { class: "bar-cell", "data-tip": tip }, bar(e, percent)),
      el("td", { class: "num" }, number(e.score, places, true)),
      el("td", { class: "num wide" }, span(e.low, e.high, places, true)),
      el("td", { class: `verdict ${WORD_CLASSES[e.verdict]}` }, word));
  });
  fill("task-table",
    el("caption", { class: "unseen" }, `What each task does to ${name}`),
    el("thead", {}, el("tr", {}, header("task", "task"), el("th", { scope: "col", class: "unseen-cell" }, ""),
      header("score", "score", "num"), header("interval", "90% interval", "num wide"), header("verdict", "verdict", "verdict"))),
    el("tbody", {}, rows));
  for (const button of byId("task-table").querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const by = button.dataset.sort;
      state.sort = { by, down: state.sort.by === by ? !state.sort.down : by !== "task" };
      showTasks(report, state, openProfile);
      byId("task-table").querySelector(`[data-sort="${by}"]`).focus();
    });
  }
  fill("task-more", cut || (state.all && matching.length > MOST_BARS)
    ? el("button", { type: "button", id: "task-all", onclick: () => {
        state.all = !state.all;
        showTasks(report, state, openProfile);
      } }, cut ? `Show all ${matching.length} tasks` : "Show fewer")
    : matching.length ? null : "No task has that name.");
}

function bar(e, percent) {
  const zero = percent(0);
  const end = percent(e.score);
  const parts = [
    svg("line", { x1: `${zero}%`, x2: `${zero}%`, y1: 0, y2: 26, class: "zero" }),
    svg("rect", { x: `${Math.min(zero, end)}%`, width: `${Math.abs(end - zero)}%`, y: 6, height: 14, rx: 2, class: CLASSES[e.verdict], opacity: 0.85 }),
  ];
  if (finite(e.low)) {
    parts.push(svg("line", { x1: `${percent(e.low)}%`, x2: `${percent(e.high)}%`, y1: 13, y2: 13, class: "whisker" }));
  }
  return svg("svg", { "aria-hidden": true }, parts);
}

// ---- the profile of a task ----

function showProfile(report, state, task, partners, actions) {
  const { target } = state;
  const { attribution } = report.doc;
  const dialog = byId("profile");
  const e = report.effect(task, target);
  const places = report.scorePlaces(target);
  const name = report.tasks[task];
  const close = () => dialog.close();
  const inside = state.subset[task] > 0;
  put(dialog,
    el("header", {}, el("h2", { id: "profile-title" }, name),
      el("button", { type: "button", class: "quiet", id: "profile-close", "aria-label": "Close", onclick: close }, "✕")),
    el("p", {}, el("b", { class: WORD_CLASSES[e.verdict] }, attribution.words[e.verdict]),
      `: ${number(e.score, places, true)} (90% interval ${span(e.low, e.high, places, true)}) in ${report.targets[target].name}, `,
      `${attribution.what}.`),
    report.binary ? withAndWithout(report, target, task) : byWeight(report, target, task),
    partners ? partnersOf(report, task, partners, actions) : null,
    report.T > 1 ? onTargets(report, task) : null,
    report.binary
      ? el("p", {}, el("button", { type: "button", id: "profile-toggle", onclick: () => { actions.toggle(task, !inside); close(); } },
          inside ? "Take it out in the explorer" : "Put it in in the explorer"))
      : null);
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
    parts.push(svg("text", { x: 0, y: base - 20, class: "ink" }, row ? "without" : "with"),
      svg("text", { x: 0, y: base - 5 }, counted(runs.length, "run")),
      strip(own, x, base, { radius: 2.8, most: 11, tips }));
    if (!own.length) return;
    const at = x(mean(own));
    parts.push(svg("line", { x1: at, x2: at, y1: base - 64, y2: base + 2, stroke: "var(--accent)", "stroke-width": 2 }),
      svg("text", { x: at + 5, y: base - 54, class: "ink" }, `mean ${number(mean(own), places)}`));
  });
  return el("figure", {}, canvas(width, 172, `Runs with and without ${report.tasks[task]}`, parts),
    el("figcaption", {}, "Measured runs, whatever else was in them; the score above takes the other tasks into account."));
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
  const parts = [xAxis(x, ticks(x0, x1), 194, 186, tickPlaces(ticks(x0, x1))), yAxis(y, ticks(y0, y1, 4), 56, width - 66, tickPlaces(ticks(y0, y1, 4)))];
  values.forEach((value, i) => finite(value) && parts.push(svg("circle", { cx: x(weights[i]), cy: y(value), r: 3, class: "u", opacity: 0.6,
    "data-tip": `run ${i + 1}: weight ${Number(weights[i].toPrecision(3))}, ${number(value, places)}` })));
  return el("figure", {}, canvas(width, 214, `Measured outcome by weight of ${report.tasks[task]}`, parts),
    el("figcaption", {}, `Measured ${report.targets[target].name} by the weight of ${report.tasks[task]}.`));
}

function partnersOf(report, task, pairs, actions) {
  const own = pairs.list.filter((p) => p.a === task || p.b === task).sort((p, q) => Math.abs(q.score) - Math.abs(p.score));
  const rows = own.slice(0, 6).map((p) => {
    const other = p.a === task ? p.b : p.a;
    return el("tr", {},
      el("td", {}, el("button", { type: "button", class: "link", onclick: () => actions.openProfile(other) }, report.tasks[other])),
      el("td", { class: "num" }, number(p.score, pairs.places, true)),
      el("td", { class: "num" }, span(p.low, p.high, pairs.places, true)),
      el("td", { class: `verdict ${WORD_CLASSES[p.verdict]}` }, pairs.words[p.verdict]));
  });
  return [el("h3", {}, "Strongest partners"), el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows)))];
}

function onTargets(report, task) {
  const rows = report.targets.map(({ name }, t) => ({ name, t, ...report.effect(task, t) })).slice(0, 12);
  return [el("h3", {}, "On each target"), el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows.map((e) =>
    el("tr", {}, el("td", {}, e.name), el("td", { class: "num" }, number(e.score, report.scorePlaces(e.t), true)),
      el("td", { class: `verdict ${WORD_CLASSES[e.verdict]}` }, report.doc.attribution.words[e.verdict])))))),
    report.T > 12 ? el("p", { class: "note" }, `and ${report.T - 12} more targets`) : null];
}

// ---- tasks × targets ----

function showHeat(report, state, actions) {
  if (report.T < 2) return;
  byId("targets").hidden = byId("targets-link").hidden = false;
  const spread = report.targets.map((_, t) => {
    const values = Array.from(report.values(t)).filter(finite);
    const center = mean(values);
    return Math.sqrt(mean(values.map((v) => (v - center) ** 2))) || 1;
  });
  const goodness = (k, t) => ((report.targets[t].up ? 1 : -1) * report.effect(k, t).score) / spread[t];
  const strength = (k) => Math.max(...report.targets.map((_, t) => Math.abs(goodness(k, t))));
  const targets = [...report.targets.keys()].slice(0, HEAT_TARGETS);
  let tasks = [...report.tasks.keys()];
  if (tasks.length > HEAT_TASKS) tasks = tasks.sort((a, b) => strength(b) - strength(a)).slice(0, HEAT_TASKS);
  const overall = (k) => mean(targets.map((t) => goodness(k, t)));
  tasks.sort((a, b) => overall(b) - overall(a));
  const limit = Math.max(...tasks.map(strength), 1e-300);
  const left = [];
  if (tasks.length < report.K) left.push(`the ${tasks.length} tasks with the strongest effects of ${report.K}`);
  if (targets.length < report.T) left.push(`the first ${targets.length} of ${report.T} targets`);
  byId("targets-intro").textContent =
    "Scores relative to the spread of each outcome, so that targets compare; dots mark those that can be told from zero. " +
    `Choose a cell to look at its task and target.${left.length ? ` Shown: ${left.join(", ")}.` : ""}`;
  fill("heat", grid({
    rows: tasks.map((k) => report.tasks[k]),
    columns: targets.map((t) => report.targets[t].name),
    current: targets.indexOf(state.target),
    cell: (r, c) => {
      const e = report.effect(tasks[r], targets[c]);
      const word = report.doc.attribution.words[e.verdict];
      return {
        value: goodness(tasks[r], targets[c]) / limit, sure: e.verdict !== 2,
        tip: `${report.tasks[tasks[r]]} → ${report.targets[targets[c]].name}\n${number(e.score, report.scorePlaces(targets[c]), true)} (${span(e.low, e.high, report.scorePlaces(targets[c]), true)}), ${word}`,
        act: () => { actions.retarget(targets[c]); actions.openProfile(tasks[r]); },
      };
    },
    label: "Scores of tasks on targets",
    width: widthOf(byId("heat")),
  }));
}
