// Runs engine.js in Node for test_playground.py: a list of requests on standard input, a list of results on standard output.
"use strict";
const [engine, Tokenizer] = process.argv.slice(2).map(require);
const requests = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));

const changesOf = ({ disabled = [], weights = {}, ...flags } = {}) => ({ ...flags, disabled: new Set(disabled), weights: new Map(Object.entries(weights)) });
const finite = (rows) => rows.map((row) => row.map((x) => (Number.isFinite(x) ? x : String(x))));
const numbers = (matrix, what) => { const kept = new engine.Matrix(matrix.rows, matrix.cols, matrix[what]); return finite(kept.toArray()); };
const byName = (taps, what) => Object.fromEntries(Object.entries(taps).map(([name, tap]) => [name, Array.isArray(tap) ? tap.map((one) => numbers(one, what)) : numbers(tap, what)]));

const run = {
  backward({ spec, source, input, targets, smoothing, changes }) {
    const model = new engine.Transformer(spec), { losses, taps, probabilities } = model.backward(source, input, targets, smoothing, changesOf(changes));
    const lens = Array.from({ length: spec.config.decoder_layers }, (_, layer) => model.lens(taps, layer).toArray());
    return { losses, probabilities, lens, taps: byName(taps, "data"), gradients: byName(taps, "grad"), parameters: Object.fromEntries([...model.parameters].map(([name, p]) => [name, [...p.grad]])) };
  },
  update({ spec, source, input, targets, kind, rate, steps }) {
    const model = new engine.Transformer(spec), optimizer = new engine.Optimizer(model, kind), losses = [];
    for (let step = 0; step < steps; step += 1) {
      losses.push(model.backward(source, input, targets).losses.reduce((sum, x) => sum + x, 0));
      optimizer.update(rate);
    }
    return { losses, parameters: Object.fromEntries([...model.parameters].map(([name, p]) => [name, [...p.data]])) };
  },
  search({ spec, source, settings, changes }) { return new engine.Transformer(spec).search(source, settings, changesOf(changes)); },
  text({ settings, texts }) {
    const tokenizer = new Tokenizer(settings);
    return texts.map((text) => { const ids = tokenizer.encode(text); return [ids, tokenizer.decode(ids)]; });
  },
};
process.stdout.write(JSON.stringify(requests.map((request) => run[request.run](request))));
