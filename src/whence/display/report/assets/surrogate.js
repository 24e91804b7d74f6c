// The surrogate, evaluated in the browser: the same formulas as in whence.surrogates, from the arrays of export.py.
//
// A *position* is a subset together with the sums over tasks that its kernel values are made of, so that the
// prediction for a subset one task away costs one pass over the runs.

class AdditiveSurrogate {
  constructor(doc, place) {
    this.coef = rowOf(unpack(doc.coef), doc.coef.shape, place);
    this.intercept = unpack(doc.intercept)[place];
    this.center = unpack(doc.center);
    this.form = doc.basis ? new Spectral(doc, place) : new Quadratic(doc, place);
    this.constant = unpack(doc.constant)[place];
    this.noise = unpack(doc.noise)[place];
    this.factor = factorOf(doc, place);
    this.ready = true;
    this.cost = this.coef.length;
  }

  at(subset) {
    let mean = this.intercept;
    for (let k = 0; k < subset.length; k++) mean += this.coef[k] * subset[k];
    return { subset, mean };
  }

  moved(from, k, weight) {
    const subset = from.subset.slice();
    subset[k] = weight;
    return { subset, mean: from.mean + this.coef[k] * (weight - from.subset[k]) };
  }

  // What is compared when subsets are: increases with the predicted outcome.
  level(position) {
    return position.mean;
  }

  mean(position) {
    return this.at(position.subset).mean;
  }

  std(position) {
    return Math.sqrt(this.variance(position)) * this.factor;
  }

  // Of the surrogate itself, without the noise of a run.
  uncertainty(position) {
    return Math.sqrt(Math.max(this.variance(position) - this.noise, 0)) * this.factor;
  }

  // (s − center)ᵀ Q (s − center) + constant.
  variance(position) {
    return this.constant + this.form.at(position.subset.map((weight, k) => weight - this.center[k]));
  }

  async prepare() {}
}

// dᵀ Q d of a matrix packed as its lower triangle.
class Quadratic {
  constructor(doc, place) {
    this.entries = rowOf(unpack(doc.quadratic), doc.quadratic.shape, place);
  }

  at(d) {
    let total = 0;
    for (let i = 0, p = 0; i < d.length; i++) {
      for (let j = 0; j < i; j++, p++) total += 2 * d[i] * d[j] * this.entries[p];
      total += d[i] * d[i] * this.entries[p++];
    }
    return total;
  }
}

// dᵀ Q d of ridge regression averaged over penalties (run_variance of additive.py): targets share the directions.
class Spectral {
  constructor(doc, place) {
    this.directions = columnsOf(doc.basis);
    const spectrum = unpack(doc.spectrum);
    const penalties = unpack(doc.penalties);
    const [shares, spread] = [doc.shares, doc.spread].map((one) => rowOf(unpack(one), one.shape, place));
    this.unit = doc.unit.shape.length > 1 ? columnsOf(doc.unit) : unpack(doc.unit);
    this.combined = doc.unit.shape.length > 1;
    const gradient = Array.from(rowOf(unpack(doc.gradient), doc.gradient.shape, place));
    const mean = spectrum.map((s) => penalties.reduce((sum, penalty, a) => sum + shares[a] / (s + penalty), 0));
    this.per = spectrum.map((s) => penalties.reduce((sum, penalty, a) => sum + spread[a] / (s + penalty), 0));
    this.rest = unpack(doc.rest)[place]; // of what the runs say nothing about
    this.moves = Array.from(penalties, (penalty, a) => ({
      share: penalties.length > 1 ? shares[a] : 0,
      by: gradient.map((g, r) => g * (1 / (spectrum[r] + penalty) - mean[r])),
    })).filter(({ share }) => share > 0);
  }

  at(difference) {
    const d = this.combined
      ? this.unit.map((column) => dot(column, difference))
      : difference.map((each, k) => each * this.unit[k]);
    const b = this.directions.map((direction) => dot(direction, d));
    let total = this.rest * (dot(d, d) - dot(b, b));
    for (let r = 0; r < b.length; r++) total += this.per[r] * b[r] * b[r];
    for (const { share, by } of this.moves) total += share * dot(by, b) ** 2;
    return total;
  }
}

// The columns of a packed matrix.
function columnsOf(packed) {
  const [rows, columns] = packed.shape;
  const values = unpack(packed);
  return Array.from({ length: columns }, (_, c) =>
    Float64Array.from({ length: rows }, (_, r) => values[r * columns + c]),
  );
}

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

// What stds of a target are multiplied with so that its intervals hold.
const factorOf = (doc, place) => (doc.factor ? unpack(doc.factor)[place] : 1);

class Posterior {
  constructor(doc, place, source) {
    const group = doc.groups.find((one) => one.targets.includes(place));
    const at = group.targets.indexOf(place);
    this.coordinates = new Coordinates(doc.coordinates);
    this.factor = factorOf(doc, place);
    this.factored = unpack(doc.factored);
    this.alpha = group.alpha;
    this.offset = unpack(group.level)[at];
    this.scale = unpack(group.scale)[at];
    const rows = unpack(doc.rows);
    this.X = Array.from(rows, (row) => this.coordinates.of(source.subset(row)));
    this.size = this.X.length;
    this.cost = this.size;
    this.parts = [];
    for (const part of group.kernel) this.parts.push(new KernelPart(part, this.parts));
    this.sizesOfRuns = this.parts.map((part) => (part.kind === "size" ? this.X.map((x) => part.sizeOf(x)) : null));
    this.noise = unpack(group.noise);
    this.ready = false;
    if (group.dual) this.dual = rowOf(unpack(group.dual), group.dual.shape, at);
    else this.measured = Array.from(rows, source.outcome);
  }

  // What was measured, as the process sees it.
  get given() {
    return this.measured;
  }

  // Few runs are not sent their dual coefficients (gram + noise)⁻¹ (outcome − level): they are computed here.
  solve() {
    for (const _ of this.rowsOfFactor());
    this.ready = true;
    const { L, size } = this;
    const x = Float64Array.from(this.given, (value) => value - this.offset);
    for (let i = 0, p = 0; i < size; i++) {
      for (let j = 0; j < i; j++) x[i] -= L[p++] * x[j];
      x[i] /= L[p++];
    }
    for (let i = size - 1; i >= 0; i--) {
      const start = (i * (i + 1)) / 2;
      x[i] /= L[start + i];
      for (let j = 0; j < i; j++) x[j] -= L[start + j] * x[i];
    }
    return x;
  }

  at(subset) {
    const x = this.coordinates.of(subset);
    return { subset, x, sums: this.parts.map((part, p) => part.sums(x, this.X, this.sizesOfRuns[p])) };
  }

  moved(from, k, weight) {
    const subset = from.subset.slice();
    subset[k] = weight;
    const x = from.x.slice();
    const changed = this.coordinates.ofTask(k, weight);
    const sums = from.sums.slice();
    for (const [d, value] of changed) {
      this.parts.forEach((part, p) => {
        sums[p] = part.movedSums(sums[p], x, this.X, d, value, this.sizesOfRuns[p]);
      });
      x[d] = value;
    }
    return { subset, x, sums };
  }

  // k(s, t) for every run t.
  against(position) {
    if (!position.values) {
      position.values = new Float64Array(this.size);
      this.parts.forEach((part, p) => part.addValues(position.sums[p], position.values));
    }
    return position.values;
  }

  level(position) {
    this.dual ??= this.solve();
    return dot(this.against(position), this.dual) + this.offset;
  }

  mean(position) {
    return this.level(position);
  }

  // Of a new measured run: its noise added, on the scale of the outcome.
  std(position) {
    return this.relativeStd(position) * this.scale * this.factor;
  }

  uncertainty(position) {
    return Math.sqrt(this.unexplained(position)) * this.scale * this.factor;
  }

  relativeStd(position) {
    return Math.sqrt(this.unexplained(position) + this.alpha);
  }

  // prior − kᵀ C⁻¹ k.
  unexplained(position) {
    position.unexplained ??= this.computeUnexplained(position);
    return position.unexplained;
  }

  computeUnexplained(position) {
    const values = this.against(position);
    const prior = this.parts.reduce((sum, part) => sum + part.diagonal(position.x), 0);
    const half = new Float64Array(this.factored.length);
    let explained = 0;
    for (let i = 0, p = 0; i < half.length; i++) {
      let rest = values[this.factored[i]];
      for (let j = 0; j < i; j++) rest -= this.L[p++] * half[j];
      half[i] = rest / this.L[p++];
      explained += half[i] * half[i];
    }
    return Math.max(prior - explained, 0);
  }

  // The Cholesky factor of gram + noise, row by row, pausing so that the page stays alive.
  prepare() {
    this.preparing ??= this.factorise();
    return this.preparing;
  }

  async factorise() {
    if (this.ready) return;
    for (const _ of this.rowsOfFactor()) await pause();
    this.ready = true;
  }

  *rowsOfFactor() {
    const n = this.factored.length;
    const L = new Float64Array((n * (n + 1)) / 2);
    const rows = Array.from(this.factored, (row) => this.X[row]);
    for (let i = 0, start = 0; i < n; start += ++i) {
      for (let j = 0, other = 0; j <= i; other += ++j) {
        let rest = i === j ? this.noise[this.factored[i]] : 0;
        for (const part of this.parts) rest += i === j ? part.diagonal(rows[i]) : part.value(rows[i], rows[j]);
        for (let k = 0; k < j; k++) rest -= L[start + k] * L[other + k];
        L[start + j] = i === j ? Math.sqrt(rest) : rest / L[other + j];
      }
      yield;
    }
    this.L = L;
  }
}

// A posterior in normal scores of the outcome, mapped back through the measured outcomes (combined.py).
class RankPosterior extends Posterior {
  constructor(doc, place, source) {
    super(doc, place, source);
    const scores = rowOf(unpack(doc.scores), doc.scores.shape, place);
    const outcomes = doc.outcomes
      ? rowOf(unpack(doc.outcomes), doc.outcomes.shape, place)
      : Float64Array.from(this.measured).sort();
    this.ranks = new RankScale(scores, outcomes);
    this.leastStd = unpack(doc.least_std)[place];
    this.outcomeScale = unpack(doc.scale)[place];
  }

  get given() {
    return this.measured.map((value) => this.ranks.scores[this.ranks.outcomes.indexOf(value)]);
  }

  mean(position) {
    return this.ranks.outcome(this.level(position));
  }

  std(position) {
    const half = this.ranks.outcomeStd(this.level(position), this.relativeStd(position) * this.scale);
    return Math.max(half, this.leastStd) * this.factor;
  }

  uncertainty(position) {
    return Math.sqrt(this.unexplained(position)) * this.outcomeScale * this.factor;
  }
}

// The monotone map between outcomes and normal scores of one target (warp.py).
class RankScale {
  constructor(scores, outcomes) {
    this.scores = scores;
    this.outcomes = outcomes;
  }

  static of(doc, place) {
    return new RankScale(...[doc.scores, doc.outcomes].map((one) => rowOf(unpack(one), one.shape, place)));
  }

  // Linear between measured outcomes, and beyond them with the slope of the outer tenth.
  outcome(z) {
    const { scores, outcomes } = this;
    const last = scores.length - 1;
    const inner = Math.max(1, Math.floor(scores.length / 10));
    const slope = (a, b) => (scores[a] !== scores[b] ? (outcomes[a] - outcomes[b]) / (scores[a] - scores[b]) : 0);
    if (z < scores[0]) return outcomes[0] + (last > 0 ? slope(0, inner) * (z - scores[0]) : 0);
    if (z > scores[last]) return outcomes[last] + (last > 0 ? slope(last, last - inner) * (z - scores[last]) : 0);
    return between(z, scores, outcomes);
  }

  // Within the measured range.
  score(y) {
    return between(y, this.outcomes, this.scores);
  }

  outcomeStd(z, std) {
    return (this.outcome(z + std) - this.outcome(z - std)) / 2;
  }

  scoreStd(y, std) {
    return (this.score(y + std) - this.score(y - std)) / 2;
  }
}

// The value at x of a line through points of increasing xs; beyond them that of the last.
function between(x, xs, ys) {
  let low = 0;
  let high = xs.length - 1;
  if (x <= xs[0]) return ys[0];
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return ys[low] + ((ys[high] - ys[low]) / (xs[high] - xs[low])) * (x - xs[low]);
}

// What is made of other surrogates. A position has those of all posteriors and sums of tasks ("leaves") beneath it, so
// that what several members share is computed once.
class Composite {
  constructor(doc, place, members) {
    this.factor = factorOf(doc, place);
    this.leaves = [...new Set(members.flatMap((member) => member.leaves ?? [member]))];
    this.cost = this.leaves.reduce((sum, leaf) => sum + leaf.cost, 0);
  }

  get ready() {
    return this.leaves.every((leaf) => leaf.ready);
  }

  async prepare() {
    for (const leaf of this.leaves) await leaf.prepare();
  }

  at(subset) {
    return { subset, of: new Map(this.leaves.map((leaf) => [leaf, leaf.at(subset)])) };
  }

  moved(from, k, weight) {
    const of = new Map(this.leaves.map((leaf) => [leaf, leaf.moved(from.of.get(leaf), k, weight)]));
    return { subset: of.get(this.leaves[0]).subset, of };
  }

  level(position) {
    return this.mean(position);
  }
}

// What a member says ("mean", "std", "uncertainty") at the position of a composite.
const said = (member, what, position) => member[what](position.of.get(member) ?? position);

// Several surrogates, weighted; what they disagree about is uncertain (averaged.py).
class AveragedSurrogate extends Composite {
  constructor(doc, place, source) {
    const members = doc.members.map((member) => madeOf(member, place, source));
    super(doc, place, members);
    this.members = members;
    this.weights = rowOf(unpack(doc.weights), doc.weights.shape, place);
  }

  mean(position) {
    return this.members.reduce((sum, member, i) => sum + this.weights[i] * said(member, "mean", position), 0);
  }

  std(position) {
    return this.spread(position, "std");
  }

  uncertainty(position) {
    return this.spread(position, "uncertainty");
  }

  spread(position, kind) {
    const means = this.members.map((member) => said(member, "mean", position));
    const middle = dot(this.weights, means);
    const second = this.members.reduce(
      (sum, member, i) => sum + this.weights[i] * (said(member, kind, position) ** 2 + (means[i] - middle) ** 2),
      0,
    );
    return Math.sqrt(second) * this.factor;
  }
}

// A weighted sum of targets, as if all erred together (goal.py).
class MeanOfTargets extends Composite {
  constructor(doc, place, source) {
    const members = doc.columns.map(source.target);
    super(doc, place, members);
    this.members = members;
    this.coef = unpack(doc.coef);
    this.offset = doc.offset;
  }

  mean(position) {
    return this.members.reduce((sum, member, i) => sum + this.coef[i] * said(member, "mean", position), this.offset);
  }

  std(position) {
    const add = (sum, member, i) => sum + Math.abs(this.coef[i]) * said(member, "std", position);
    return this.members.reduce(add, 0) * this.factor;
  }
}

// Components that all targets are made of, in normal scores (components.py).
class ComponentsSurrogate extends Composite {
  constructor(doc, place, source) {
    const loadings = rowOf(unpack(doc.loadings), doc.loadings.shape, place);
    const components = Array.from(loadings, (_, c) => madeOf(doc.components, c, source));
    super(doc, place, components);
    this.loadings = loadings;
    this.components = components;
    [this.middle, this.rest, this.slope] = [doc.level, doc.rest, doc.slope].map((one) => unpack(one)[place]);
    this.ranks = RankScale.of(doc.scale, place);
  }

  score(position) {
    return this.components.reduce(
      (sum, component, c) => sum + this.loadings[c] * said(component, "mean", position),
      this.middle,
    );
  }

  spread(position, kind, rest) {
    return Math.sqrt(
      this.components.reduce(
        (sum, component, c) => sum + (this.loadings[c] * said(component, kind, position)) ** 2,
        rest ** 2,
      ),
    );
  }

  mean(position) {
    return this.ranks.outcome(this.score(position));
  }

  std(position) {
    return this.ranks.outcomeStd(this.score(position), this.spread(position, "std", this.rest)) * this.factor;
  }

  uncertainty(position) {
    return this.spread(position, "uncertainty", 0) * Math.abs(this.slope) * this.factor;
  }
}

// Estimates, each times its slope, and a process of what they leave over (fused.py).
class FusedSurrogate extends Composite {
  constructor(doc, place, source) {
    const residual = madeOf(doc.residual, place, source);
    const rungs = doc.rungs.map((rung) => new Rung(rung, place, source));
    super(doc, place, [residual, ...rungs.map((rung) => rung.model)]);
    this.residual = residual;
    this.rungs = rungs;
    this.carried = doc.carried.map(({ dual, level }) => ({
      dual: rowOf(unpack(dual), dual.shape, place),
      level: unpack(level)[place],
    }));
    this.slopes = rowOf(unpack(doc.slopes), doc.slopes.shape, place);
    const squared = rungs.length ** 2;
    this.covariance = unpack(doc.covariance).subarray(place * squared, (place + 1) * squared);
    this.usual = unpack(doc.usual)[place];
  }

  mean(position) {
    const rest = said(this.residual, "mean", position);
    return this.rungs.reduce((sum, rung, r) => sum + this.slopes[r] * rung.mean(position), rest);
  }

  std(position) {
    let variance = said(this.residual, "std", position) ** 2;
    const against = this.residual.against(position.of.get(this.residual));
    // How far estimates are from what the runs say of them: so much does an uncertain slope matter.
    const apart = this.rungs.map((rung, r) => {
      variance += (this.slopes[r] * rung.uncertainty(position)) ** 2;
      return rung.mean(position) - dot(against, this.carried[r].dual) - this.carried[r].level;
    });
    apart.forEach((a, r) => apart.forEach((b, s) => (variance += a * b * this.covariance[r * apart.length + s])));
    return Math.sqrt(Math.max(variance - this.usual, 0)) * this.factor;
  }
}

// One kind of estimates, less their mean; as normal scores where they are fused on ranks (rungs.py).
class Rung {
  constructor(doc, place, source) {
    this.model = source.estimates(doc.model, place);
    this.middle = unpack(doc.level)[place];
    this.ranks = doc.scale ? RankScale.of(doc.scale, place) : null;
  }

  mean(position) {
    const expected = said(this.model, "mean", position);
    return (this.ranks ? this.ranks.score(expected) : expected) - this.middle;
  }

  uncertainty(position) {
    const std = said(this.model, "uncertainty", position);
    return this.ranks ? this.ranks.scoreStd(said(this.model, "mean", position), std) : std;
  }
}

// Fusion of normal scores, mapped back to outcomes (rank_fused.py).
class RankFusedSurrogate extends Composite {
  constructor(doc, place, source) {
    const scored = madeOf(doc.scored, place, source);
    super(doc, place, [scored]);
    this.scored = scored;
    this.ranks = RankScale.of(doc.scale, place);
  }

  level(position) {
    return this.scored.mean(position);
  }

  mean(position) {
    return this.ranks.outcome(this.level(position));
  }

  std(position) {
    return this.ranks.outcomeStd(this.level(position), this.scored.std(position)) * this.factor;
  }
}

// x = (transform(s) − center) / scale.
class Coordinates {
  constructor(doc) {
    this.transform = doc.transform;
    this.floor = doc.floor;
    this.center = unpack(doc.center);
    this.scale = unpack(doc.scale);
  }

  of(subset) {
    const x = new Float64Array(this.center.length);
    for (let k = 0; k < subset.length; k++) for (const [d, value] of this.ofTask(k, subset[k])) x[d] = value;
    return x;
  }

  // Which coordinates a task has, and their values at this weight.
  ofTask(k, weight) {
    const place = (d, raw) => [d, (raw - this.center[d]) / this.scale[d]];
    if (this.transform === "identity") return [place(k, weight)];
    if (this.transform === "sqrt") return [place(k, Math.sqrt(weight))];
    const log = Math.log(weight + this.floor);
    return this.transform === "log" ? [place(k, log)] : [place(k, weight), place(k + this.center.length / 2, log)];
  }
}

// One summand of a kernel (kernels.py): a function of one sum over coordinates.
class KernelPart {
  constructor(doc, earlier) {
    this.kind = doc.part;
    this.variance = doc.variance;
    this.degree = doc.degree;
    this.offset = doc.offset;
    this.rate = doc.rate;
    this.anchor = doc.anchor; // the one size of all runs, where nothing is known of others
    if (doc.weights) this.per = unpack(doc.weights);
    else if (doc.like !== undefined) this.per = earlier[doc.like].per.map((weight) => doc.times * weight);
  }

  // Polynomial: Σ w x y. RBF: Σ r (x − y)². Size: the difference in size.
  sum(x, y) {
    const { per } = this;
    let total = 0;
    if (this.kind === "polynomial") for (let d = 0; d < x.length; d++) total += per[d] * x[d] * y[d];
    else if (this.kind === "rbf") for (let d = 0; d < x.length; d++) total += per[d] * (x[d] - y[d]) ** 2;
    else if (this.kind === "size") total = this.sizeOf(x) - this.sizeOf(y);
    return total;
  }

  sizeOf(x) {
    let size = this.offset;
    for (let d = 0; d < x.length; d++) size += x[d] * this.per[d];
    return size;
  }

  sums(x, X, sizes) {
    if (this.kind === "constant") return null;
    const found = new Float64Array(X.length);
    const size = sizes && this.sizeOf(x);
    for (let i = 0; i < X.length; i++) found[i] = sizes ? size - sizes[i] : this.sum(x, X[i]);
    return found;
  }

  // The sums when coordinate d moves from x[d] to value.
  movedSums(sums, x, X, d, value) {
    if (this.kind === "constant") return null;
    const found = new Float64Array(sums.length);
    const per = this.per[d];
    const old = x[d];
    if (this.kind === "rbf") {
      for (let i = 0; i < found.length; i++) {
        const y = X[i][d];
        found[i] = sums[i] + per * ((value - y) ** 2 - (old - y) ** 2);
      }
    } else if (this.kind === "polynomial") {
      const step = per * (value - old);
      for (let i = 0; i < found.length; i++) found[i] = sums[i] + step * X[i][d];
    } else {
      const step = per * (value - old);
      for (let i = 0; i < found.length; i++) found[i] = sums[i] + step;
    }
    return found;
  }

  of(sum) {
    if (this.kind === "constant") return this.variance;
    if (this.kind === "rbf") return this.variance * Math.exp(-Math.max(sum, 0));
    if (this.kind === "size") return this.variance * Math.exp(-this.rate * sum * sum);
    return this.variance * (sum + this.offset) ** this.degree;
  }

  addValues(sums, values) {
    if (this.anchor !== undefined) return; // all runs have that size
    for (let i = 0; i < values.length; i++) values[i] += this.of(sums && sums[i]);
  }

  value(x, y) {
    if (this.anchor !== undefined) {
      return this.of(this.sum(x, y)) - this.of(this.away(x)) - this.of(this.away(y)) + this.variance;
    }
    return this.of(this.kind === "constant" ? null : this.sum(x, y));
  }

  away(x) {
    return this.sizeOf(x) - this.anchor;
  }

  diagonal(x) {
    if (this.anchor !== undefined) return 2 * (this.variance - this.of(this.away(x)));
    return this.kind === "polynomial" ? this.of(this.sum(x, x)) : this.variance;
  }
}

// The surrogate of a target; null where the page has none for it.
function surrogateOf(docs, target, runs) {
  const doc = docs.find((part) => part.targets.includes(target));
  if (!doc) return null;
  const made = new Map();
  // The model of a table of estimates, once for all that build on it.
  const estimates = (which, place) => {
    if (!made.has(which)) made.set(which, modelOf(doc.models[which], place, runs.K));
    return made.get(which);
  };
  const subset = (row) => runs.subset(row);
  const outcome = (row) => mean(runs.measured(runs.subset(row), target));
  const other = (column) => surrogateOf(docs, column, runs);
  return madeOf(doc, doc.targets.indexOf(target), { subset, outcome, estimates, target: other });
}

function modelOf({ subsets, surrogates }, place, tasks) {
  const weights = unpack(subsets);
  const subset = (row) => Float64Array.from(weights.subarray(row * tasks, (row + 1) * tasks));
  const doc = surrogates.find((part) => part.targets.includes(place));
  return madeOf(doc, doc.targets.indexOf(place), { subset });
}

const KINDS = {
  additive: AdditiveSurrogate,
  posterior: Posterior,
  ranks: RankPosterior,
  averaged: AveragedSurrogate,
  mean: MeanOfTargets,
  components: ComponentsSurrogate,
  fused: FusedSurrogate,
  "fused on ranks": RankFusedSurrogate,
};

// The surrogate in some place of a document; `source` has the runs it was fitted to.
const madeOf = (doc, place, source) => new KINDS[doc.kind](doc, place, source);
