// Several targets: the map of tasks × targets.

const HEAT_TASKS = 60;
const HEAT_TARGETS = 60;

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
  fill(
    "heat",
    grid({
      rows: tasks.map((k) => report.tasks[k]),
      columns: targets.map((t) => report.targets[t].name),
      current: targets.indexOf(state.target),
      cell: (r, c) => {
        const e = report.effect(tasks[r], targets[c]);
        const word = report.doc.attribution.words[e.verdict];
        return {
          value: goodness(tasks[r], targets[c]) / limit,
          sure: e.verdict !== 2,
          tip: `${report.tasks[tasks[r]]} → ${report.targets[targets[c]].name}\n${number(e.score, report.scorePlaces(targets[c]), true)} (${span(e.low, e.high, report.scorePlaces(targets[c]), true)}), ${word}`,
          act: () => {
            actions.retarget(targets[c]);
            actions.openProfile(tasks[r]);
          },
        };
      },
      label: "Scores of tasks on targets",
      largest: 44,
      smallest: 18,
      width: widthOf(byId("heat")),
    }),
  );
}
