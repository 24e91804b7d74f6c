// The document of the page (findings.py), and what is read off it again and again.

class Report {
  constructor(doc) {
    this.doc = doc;
    const { runs } = doc;
    this.tasks = runs.tasks;
    this.K = runs.tasks.length;
    this.count = runs.count;
    this.binary = runs.binary;
    this.targets = doc.targets;
    this.T = doc.targets.length;
    this.weights = unpack(runs.subsets);
    this.allValues = unpack(runs.values);
    this.effects = this.effectsOf(doc.attribution);
    this.lowest = new Float64Array(this.K).fill(Infinity);
    this.highest = new Float64Array(this.K).fill(-Infinity);
    const totals = [];
    for (let i = 0; i < this.count; i++) {
      const subset = this.subset(i);
      subset.forEach((weight, k) => {
        this.lowest[k] = Math.min(this.lowest[k], weight);
        this.highest[k] = Math.max(this.highest[k], weight);
      });
      totals.push(subset.reduce((a, b) => a + b, 0));
    }
    this.sizes = [totals.reduce((a, b) => Math.min(a, b)), totals.reduce((a, b) => Math.max(a, b))];
    this.total = runs.total; // of the weights of a mixture, where all runs have the same; else null
  }

  effectsOf(doc) {
    return { score: unpack(doc.score), low: unpack(doc.low), high: unpack(doc.high), verdict: unpack(doc.verdict) };
  }

  subset(run) {
    return Float64Array.from(this.weights.subarray(run * this.K, (run + 1) * this.K));
  }

  values(target) {
    return this.allValues.subarray(target * this.count, (target + 1) * this.count);
  }

  // What a task does to a target.
  effect(task, target) {
    const at = target * this.K + task;
    const { score, low, high, verdict } = this.effects;
    return { score: score[at], low: low[at], high: high[at], verdict: verdict[at] };
  }

  scorePlaces(target) {
    return this.doc.attribution.places[target];
  }

  // Tasks, the most helpful first.
  ranking(target) {
    const sign = this.targets[target].up ? 1 : -1;
    const score = (k) => sign * this.effect(k, target).score;
    return [...this.tasks.keys()].sort((a, b) => score(b) - score(a));
  }

  // The mixture as near as can be to the wanted one that keeps the runs' total, `fixed` being the weight of task k.
  onBudget(subset, k = -1) {
    const sum = subset.reduce((a, b) => a + b, 0);
    const wanted = this.total ?? Math.min(Math.max(sum, this.sizes[0]), this.sizes[1]);
    if (sum === wanted) return subset;
    const fixed = k < 0 ? 0 : Math.min(subset[k], wanted);
    const [others, left] = [sum - (k < 0 ? 0 : subset[k]), wanted - fixed];
    const even = left / (subset.length - (k < 0 ? 0 : 1));
    return subset.map((weight, j) => (j === k ? fixed : others > 0 ? (weight * left) / others : even));
  }

  averageSubset() {
    const total = new Float64Array(this.K);
    for (let i = 0; i < this.count; i++) this.subset(i).forEach((weight, k) => (total[k] += weight / this.count));
    return total;
  }

  bestRun(target) {
    const sign = this.targets[target].up ? 1 : -1;
    const values = this.values(target);
    let best = -1;
    values.forEach((value, i) => {
      if (finite(value) && (best < 0 || sign * value > sign * values[best])) best = i;
    });
    return best;
  }

  // What runs of this very subset gave.
  measured(subset, target) {
    const values = this.values(target);
    const found = [];
    for (let i = 0; i < this.count; i++) {
      if (!finite(values[i])) continue;
      let k = 0;
      while (k < this.K && this.weights[i * this.K + k] === subset[k]) k++;
      if (k === this.K) found.push(values[i]);
    }
    return found;
  }

  // The greatest std of a held-out run.
  widestStd(target) {
    return this.doc.trust.held_out[target].widest || Infinity;
  }

  // What was predicted for the held-out runs of a target, and how many stds that is off.
  heldOut(target) {
    const doc = this.doc.trust.held_out[target];
    const values = this.values(target);
    const [runs, off, outside] = [doc.runs, doc.off, doc.outside].map(unpack);
    return unpackIntervals(doc).map(({ score, low, high }, i) => {
      const run = runs[i];
      return { run, predicted: score, low, high, measured: values[run], off: off[i], outside: outside[i] === 1 };
    });
  }

  // As subset_name() of the command line, the first few of many.
  subsetName(subset, limit = 12) {
    const inside = this.tasks.filter((_, k) => subset[k] > 0);
    if (!this.binary) {
      const heaviest = [...this.tasks.keys()].filter((k) => subset[k] > 0).sort((a, b) => subset[b] - subset[a]);
      return someOf(
        heaviest.map((k) => `${this.tasks[k]} ${weightText(subset[k])}`),
        Math.min(limit, 8),
      );
    }
    const outside = this.tasks.filter((_, k) => !(subset[k] > 0));
    if (!outside.length) return "all tasks";
    if (outside.length * 3 <= inside.length) return `all but ${someOf(outside, limit)}`;
    return inside.length ? someOf(inside, limit) : "(no task)";
  }

  sizeInWords(subset) {
    const inside = subset.filter((weight) => weight > 0).length;
    return `${inside} of ${counted(this.K, "task")}:`;
  }

  // For screen readers, and for those who wait.
  say(sentence) {
    byId("said").textContent = sentence;
  }
}
