// The surrogate, evaluated in the browser: the same formulas as in whence.surrogates, from the arrays of export.py.
//
// A *position* is a subset together with the sums over tasks that its kernel values are made of, so that the
// prediction for a subset one task away costs one pass over the runs.

class AdditiveSurrogate {
  constructor(doc, place) {
    const tasks = doc.coef.shape[1];
    const form = doc.quadratic.shape;
    this.coef = rowOf(unpack(doc.coef), doc.coef.shape, place);
    this.intercept = unpack(doc.intercept)[place];
    this.center = unpack(doc.center);
    this.quadratic = rowOf(unpack(doc.quadratic), form, place);
    this.constant = unpack(doc.constant)[place];
    this.noise = unpack(doc.noise)[place];
    this.factor = unpack(doc.factor)[place];
    this.ready = true;
    this.cost = tasks;
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

  // (s − center)ᵀ Q (s − center) + constant, Q packed as its lower triangle.
  variance(position) {
    let total = this.constant;
    const d = position.subset.map((weight, k) => weight - this.center[k]);
    for (let i = 0, p = 0; i < d.length; i++) {
      for (let j = 0; j < i; j++, p++) total += 2 * d[i] * d[j] * this.quadratic[p];
      total += d[i] * d[i] * this.quadratic[p++];
    }
    return total;
  }

  async prepare() {}
}

class Posterior {
  constructor(doc, group, place, runs) {
    const at = group.targets.indexOf(place);
    this.coordinates = new Coordinates(doc.coordinates);
    this.factor = unpack(doc.factor)[place];
    this.factored = unpack(doc.factored);
    this.alpha = group.alpha;
    this.diagonal = unpack(group.diagonal);
    this.dual = rowOf(unpack(group.dual), group.dual.shape, at);
    this.offset = unpack(group.level)[at];
    this.scale = unpack(group.scale)[at];
    this.size = this.dual.length;
    this.cost = this.size;
    const rows = unpack(doc.rows);
    this.X = Array.from(rows, (row) => this.coordinates.of(runs.subset(row)));
    this.parts = group.kernel.map((part) => new KernelPart(part));
    this.sizesOfRuns = this.parts.map((part) => (part.kind === "size" ? this.X.map((x) => part.sizeOf(x)) : null));
    this.ready = false;
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
    const values = this.against(position);
    let mean = 0;
    for (let i = 0; i < values.length; i++) mean += values[i] * this.dual[i];
    return mean + this.offset;
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
    this.preparing ??= this.factorise().then(() => (this.ready = true));
    return this.preparing;
  }

  async factorise() {
    const n = this.factored.length;
    const L = new Float64Array((n * (n + 1)) / 2);
    const rows = Array.from(this.factored, (row) => this.X[row]);
    for (let i = 0, start = 0; i < n; start += ++i) {
      for (let j = 0, other = 0; j <= i; other += ++j) {
        let rest = i === j ? this.diagonal[this.factored[i]] : 0;
        if (i !== j) for (const part of this.parts) rest += part.value(rows[i], rows[j]);
        for (let k = 0; k < j; k++) rest -= L[start + k] * L[other + k];
        L[start + j] = i === j ? Math.sqrt(rest) : rest / L[other + j];
      }
      await breathe();
    }
    this.L = L;
  }
}

// A posterior in normal scores of the outcome, mapped back through the measured outcomes (warp.py).
class RankPosterior extends Posterior {
  constructor(doc, group, place, runs) {
    super(doc, group, place, runs);
    this.scores = rowOf(unpack(doc.scores), doc.scores.shape, place);
    this.outcomes = rowOf(unpack(doc.outcomes), doc.outcomes.shape, place);
    this.leastStd = unpack(doc.least_std)[place];
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

// Estimates, each times its slope, and a process of what they leave over (fused.py).
class FusedSurrogate {
  constructor(doc, place, runs) {
    const count = doc.rungs.length;
    const learned = (docs, r) => surrogateOf(docs, place, new Table(doc.rungs[r], runs));
    this.factor = unpack(doc.factor)[place];
    this.residual = madeOf(doc.residual, place, runs);
    this.carried = doc.carried.map((one) => madeOf(one, place, runs));
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
  constructor(doc) {
    this.kind = doc.part;
    this.variance = doc.variance;
    this.degree = doc.degree;
    this.offset = doc.offset;
    this.rate = doc.rate;
    this.per = doc.weights ?? doc.rates ?? doc.direction;
    if (this.per) this.per = unpack(this.per);
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
  return doc ? madeOf(doc, doc.targets.indexOf(target), runs) : null;
}

// The surrogate in some place of a document.
function madeOf(doc, place, runs) {
  if (doc.kind === "additive") return new AdditiveSurrogate(doc, place);
  if (doc.kind === "fused") return new FusedSurrogate(doc, place, runs);
  const group = doc.groups.find((one) => one.targets.includes(place));
  return new (doc.kind === "ranks" ? RankPosterior : Posterior)(doc, group, place, runs);
}
