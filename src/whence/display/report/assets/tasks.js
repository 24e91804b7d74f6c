// What each task does: bars with intervals, sorted and searched.

const MOST_BARS = 40; // rows shown before "Show all"

function showTasks(report, state, openProfile) {
  const { target } = state;
  const { attribution } = report.doc;
  const { name, direction } = report.targets[target];
  byId("tasks-intro").textContent =
    `${attribution.heading} scores for ${name} (${direction}): ${attribution.what}. Lines are 90% intervals; ` +
    `a task is unclear where its interval holds zero. Scores are ${attribution.how}.`;
  fill(
    "tasks-legend",
    attribution.words.map((word, code) =>
      el("span", {}, el("i", { style: `background: var(--${["good", "bad", "dim"][code]})` }), word),
    ),
  );

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

  const [least, most] = extent(
    effects.flatMap((e) => [e.low, e.high, e.score, 0]),
    0.02,
  );
  const percent = (value) => ((value - least) / (most - least)) * 100;
  const header = (by, label, cls) =>
    el(
      "th",
      {
        scope: "col",
        class: cls,
        "aria-sort": state.sort.by === by ? (state.sort.down ? "descending" : "ascending") : null,
      },
      el("button", { type: "button", "data-sort": by }, label),
    );
  const rows = shown.map((e) => {
    if (e === null)
      return el("tr", {}, el("td", { colspan: 5, class: "dim" }, `… ${matching.length - MOST_BARS} between`));
    const word = attribution.words[e.verdict];
    const tip = `${report.tasks[e.k]}: ${number(e.score, places, true)} (${span(e.low, e.high, places, true)}), ${word}`;
    return el(
      "tr",
      {},
      el(
        "td",
        { class: "name" },
        link(() => openProfile(e.k), named(report.tasks[e.k])),
      ),
      el("td", { class: "bar-cell", "data-tip": tip }, bar(e, percent)),
      el("td", { class: "num" }, number(e.score, places, true)),
      el("td", { class: "num wide" }, span(e.low, e.high, places, true)),
      verdictCell(attribution.words, e),
    );
  });
  fill(
    "task-table",
    el("caption", { class: "unseen" }, `What each task does to ${name}`),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        header("task", "task"),
        el("th", { scope: "col", class: "unseen-cell" }, ""),
        header("score", "score", "num"),
        header("interval", "90% interval", "num wide"),
        header("verdict", "verdict", "verdict"),
      ),
    ),
    el("tbody", {}, rows),
  );
  for (const button of byId("task-table").querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const by = button.dataset.sort;
      state.sort = { by, down: state.sort.by === by ? !state.sort.down : by !== "task" };
      showTasks(report, state, openProfile);
      byId("task-table").querySelector(`[data-sort="${by}"]`).focus();
    });
  }
  fill(
    "task-more",
    cut || (state.all && matching.length > MOST_BARS)
      ? el(
          "button",
          {
            type: "button",
            id: "task-all",
            onclick: () => {
              state.all = !state.all;
              showTasks(report, state, openProfile);
            },
          },
          cut ? `Show all ${matching.length} tasks` : "Show fewer",
        )
      : matching.length
        ? null
        : "No task has that name.",
  );
}

function bar(e, percent) {
  const zero = percent(0);
  const end = percent(e.score);
  const parts = [
    svg("line", { x1: `${zero}%`, x2: `${zero}%`, y1: 0, y2: 26, class: "zero" }),
    svg("rect", {
      x: `${Math.min(zero, end)}%`,
      width: `${Math.abs(end - zero)}%`,
      y: 6,
      height: 14,
      rx: 2,
      class: CLASSES[e.verdict],
      opacity: 0.85,
    }),
  ];
  if (finite(e.low)) {
    parts.push(svg("line", { x1: `${percent(e.low)}%`, x2: `${percent(e.high)}%`, y1: 13, y2: 13, class: "whisker" }));
  }
  return svg("svg", { "aria-hidden": true }, parts);
}
