// The surrogate, evaluated in the browser: the same formulas as in whence.surrogates, from the arrays of export.py.
//
// A *position* is a subset together with the sums over tasks that its kernel values are made of, so that the
// prediction for a subset one task away costs one pass over the runs.

class AdditiveSurrogate {
  constructor(doc, place) {
    this.coef = rowOf(unpack(doc.coef), doc.coef.shape, place);
    this.intercept = unpack(doc.intercept)[place];
    this.center = unpack(doc.center);
    this.form = doc.basis ? new Spectral(doc, place, this.coef) : new Quadratic(doc, place);
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
    return Math.sqrt(this.variance(position) - this.noise) * this.factor;
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
  constructor(doc, place, coef) {
    const [tasks, rank] = doc.basis.shape;
    const basis = unpack(doc.basis);
    this.directions = Array.from({ length: rank }, (_, r) =>
      Float64Array.from({ length: tasks }, (_, k) => basis[k * rank + r]),
    );
    const spectrum = unpack(doc.spectrum);
    const penalties = unpack(doc.penalties);
    const [shares, spread] = [doc.shares, doc.spread].map((one) => rowOf(unpack(one), one.shape, place));
    const own = unpack(doc.penalty)[place];
    const along = this.directions.map((direction) => dot(direction, coef));
    this.per = spectrum.map((s) => penalties.reduce((sum, penalty, a) => sum + spread[a] / (s + penalty), 0));
    this.rest = unpack(doc.rest)[place]; // of what the runs say nothing about
    this.moves = Array.from(penalties, (penalty, a) => ({
      share: penalties.length > 1 ? shares[a] : 0,
      by: along.map((c, r) => c * ((spectrum[r] + own) / (spectrum[r] + penalty) - 1)),
    })).filter(({ share }) => share > 0);
  }

  at(d) {
    const b = this.directions.map((direction) => dot(direction, d));
    let total = this.rest * (dot(d, d) - dot(b, b));
    for (let r = 0; r < b.length; r++) total += this.per[r] * b[r] * b[r];
    for (const { share, by } of this.moves) total += share * dot(by, b) ** 2;
    return total;
  }
}

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

// What stds of a target are multiplied with so that its intervals hold.
const factorOf = (doc, place) => (doc.factor ? unpack(doc.factor)[place] : 1);

class Posterior {
  constructor(doc, group, place, runs, target) {
    const at = group.targets.indexOf(place);
    this.coordinates = new Coordinates(doc.coordinates);
    this.factor = factorOf(doc, place);
    this.factored = unpack(doc.factored);
    this.alpha = group.alpha;
    this.offset = unpack(group.level)[at];
    this.scale = unpack(group.scale)[at];
    const rows = unpack(doc.rows);
    this.X = Array.from(rows, (row) => this.coordinates.of(runs.subset(row)));
    this.size = this.X.length;
    this.cost = this.size;
    this.parts = [];
    for (const part of group.kernel) this.parts.push(new KernelPart(part, this.parts));
    this.sizesOfRuns = this.parts.map((part) => (part.kind === "size" ? this.X.map((x) => part.sizeOf(x)) : null));
    this.noise = unpack(group.noise);
    this.ready = false;
    if (group.dual) this.dual = rowOf(unpack(group.dual), group.dual.shape, at);
    else this.measured = Array.from(rows, (row) => mean(runs.measured(runs.subset(row), target)));
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
    const values = new Float64Array(this.size);
    this.parts.forEach((part, p) => part.addValues(position.sums[p], values));
    return values;
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
    for (const _ of this.rowsOfFactor()) await breathe();
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

// A posterior in normal scores of the outcome, mapped back through the measured outcomes (warp.py).
class RankPosterior extends Posterior {
  constructor(doc, group, place, runs, target) {
    super(doc, group, place, runs, target);
    this.scores = rowOf(unpack(doc.scores), doc.scores.shape, place);
    this.outcomes = doc.outcomes
      ? rowOf(unpack(doc.outcomes), doc.outcomes.shape, place)
      : Float64Array.from(this.measured).sort();
    this.leastStd = unpack(doc.least_std)[place];
  }

  get given() {
    return this.measured.map((value) => this.scores[this.outcomes.indexOf(value)]);
  }

  mean(position) {
    return this.outcome(this.level(position));
  }

  std(position) {
    const center = this.level(position);
    const spread = this.relativeStd(position) * this.scale;
    const half = (this.outcome(center + spread) - this.outcome(center - spread)) / 2;
    return Math.max(half, this.leastStd) * this.factor;
  }

  // Linear between measured outcomes, and beyond them with the slope of the outer tenth.
  outcome(z) {
    const { scores, outcomes } = this;
    const last = scores.length - 1;
    const inner = Math.max(1, Math.floor(scores.length / 10));
    const slope = (a, b) => (scores[a] !== scores[b] ? (outcomes[a] - outcomes[b]) / (scores[a] - scores[b]) : 0);
    if (z < scores[0]) return outcomes[0] + (last > 0 ? slope(0, inner) * (z - scores[0]) : 0);
    if (z > scores[last]) return outcomes[last] + (last > 0 ? slope(last, last - inner) * (z - scores[last]) : 0);
    let low = 0;
    let high = last;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (scores[middle] <= z) low = middle;
      else high = middle;
    }
    return z >= scores[high] ? outcomes[high] : outcomes[low] + slope(high, low) * (z - scores[low]);
  }
}

// Several surrogates, weighted (averaged.py); what they disagree about is uncertain.
class AveragedSurrogate {
  constructor(doc, place, runs, target) {
    this.factor = factorOf(doc, place);
    this.members = doc.members.map((member) => madeOf(member, place, runs, target));
    this.weights = rowOf(unpack(doc.weights), doc.weights.shape, place);
    this.cost = this.members.reduce((sum, member) => sum + member.cost, 0);
  }

  get ready() {
    return this.members.every((member) => member.ready);
  }

  async prepare() {
    for (const member of this.members) await member.prepare();
  }

  at(subset) {
    return { subset, of: this.members.map((member) => member.at(subset)) };
  }

  moved(from, k, weight) {
    const of = this.members.map((member, i) => member.moved(from.of[i], k, weight));
    return { subset: of[0].subset, of };
  }

  level(position) {
    return this.mean(position);
  }

  mean(position) {
    return this.members.reduce((sum, member, i) => sum + this.weights[i] * member.mean(position.of[i]), 0);
  }

  std(position) {
    return this.spread(position, "std");
  }

  uncertainty(position) {
    return this.spread(position, "uncertainty");
  }

  spread(position, kind) {
    const middle = this.mean(position);
    const second = this.members.reduce((sum, member, i) => {
      const apart = member.mean(position.of[i]) - middle;
      return sum + this.weights[i] * (member[kind](position.of[i]) ** 2 + apart ** 2);
    }, 0);
    return Math.sqrt(second) * this.factor;
  }
}

// Estimates, each times its slope, and a process of what they leave over (fused.py).
class FusedSurrogate {
  constructor(doc, place, runs, target) {
    const count = doc.rungs.length;
    const learned = (docs, r) => surrogateOf(docs, place, new Table(doc.rungs[r], runs));
    this.factor = factorOf(doc, place);
    this.residual = madeOf(doc.residual, place, runs, target);
    this.carried = doc.carried.map((one) => madeOf(one, place, runs, target));
    this.estimates = doc.rungs.map((rung, r) => learned(rung.surrogates, r));
    this.spreads = doc.rungs.map((rung, r) => learned(rung.spreads, r) ?? this.estimates[r]);
    this.slopes = doc.rungs.map((rung) => unpack(rung.slope)[place]);
    this.levels = doc.rungs.map((rung) => unpack(rung.level)[place]);
    this.covariance = unpack(doc.covariance).subarray(place * count * count, (place + 1) * count * count);
    this.uncertain = [this.residual, ...this.spreads];
    this.parts = [...new Set([...this.uncertain, ...this.carried, ...this.estimates])];
    this.cost = this.parts.reduce((sum, part) => sum + part.cost, 0);
  }

  get ready() {
    return this.uncertain.every((part) => part.ready);
  }

  async prepare() {
    for (const part of this.uncertain) await part.prepare();
  }

  at(subset) {
    return { subset, of: new Map(this.parts.map((part) => [part, part.at(subset)])) };
  }

  moved(from, k, weight) {
    const of = new Map(this.parts.map((part) => [part, part.moved(from.of.get(part), k, weight)]));
    return { subset: of.get(this.residual).subset, of };
  }

  // What the estimates of a rung are, less their mean.
  estimate(position, r) {
    const part = this.estimates[r];
    return part.mean(position.of.get(part)) - this.levels[r];
  }

  level(position) {
    const rest = this.residual.mean(position.of.get(this.residual));
    return this.slopes.reduce((sum, slope, r) => sum + slope * this.estimate(position, r), rest);
  }

  mean(position) {
    return this.level(position);
  }

  std(position) {
    let variance = this.residual.std(position.of.get(this.residual)) ** 2;
    const apart = this.slopes.map((slope, r) => {
      const spread = this.spreads[r];
      variance += (slope * spread.uncertainty(position.of.get(spread))) ** 2;
      return this.estimate(position, r) - this.carried[r].mean(position.of.get(this.carried[r]));
    });
    apart.forEach((a, r) => apart.forEach((b, s) => (variance += a * b * this.covariance[r * apart.length + s])));
    return Math.sqrt(variance) * this.factor;
  }
}

// The subsets that estimates were learned from.
class Table {
  constructor(doc, runs) {
    this.K = runs.K;
    this.weights = unpack(doc.subsets);
  }

  subset(row) {
    return Float64Array.from(this.weights.subarray(row * this.K, (row + 1) * this.K));
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
    for (let i = 0; i < values.length; i++) values[i] += this.of(sums && sums[i]);
  }

  value(x, y) {
    return this.of(this.kind === "constant" ? null : this.sum(x, y));
  }

  diagonal(x) {
    return this.kind === "polynomial" ? this.of(this.sum(x, x)) : this.variance;
  }
}

// The surrogate of a target; null where the page has none for it.
function surrogateOf(docs, target, runs) {
  const doc = docs.find((part) => part.targets.includes(target));
  return doc ? madeOf(doc, doc.targets.indexOf(target), runs, target) : null;
}

// The surrogate in some place of a document; `target` is the column of the table that it was fitted to.
function madeOf(doc, place, runs, target) {
  if (doc.kind === "additive") return new AdditiveSurrogate(doc, place);
  if (doc.kind === "averaged") return new AveragedSurrogate(doc, place, runs, target);
  if (doc.kind === "fused") return new FusedSurrogate(doc, place, runs, target);
  const group = doc.groups.find((one) => one.targets.includes(place));
  return new (doc.kind === "ranks" ? RankPosterior : Posterior)(doc, group, place, runs, target);
}
