// Run an exported anytime network under a deadline, in Node (onnxruntime-node) or a browser (onnxruntime-web).
//
//   anytime export runs/a --to onnx
//   npm install --ignore-scripts onnxruntime-node
//   node run_exported.mjs runs/a/onnx input.json 20       // the best answer within 20 ms
//
// input.json holds the numbers of one sample, flat, as the network takes them (normalized, channels first).
// In a browser: import { load } from "./run_exported.mjs"; see run_exported.html.

export class Exported {
  constructor(about, stages, heads, ort) {
    Object.assign(this, { about, stages, heads, ort });
    this.milliseconds = about.stages.map(() => 0); // the fastest time of each stage, as measured so far
  }

  tensor(numbers, samples = 1) {
    const { shape } = this.about.values[this.about.input[0]];
    return new this.ort.Tensor("float32", Float32Array.from(numbers), [samples, ...shape.slice(1)]);
  }

  // Run one stage after another; after each, yield a function that gives the logits of its exit.
  async *walk(...inputs) {
    let values = Object.fromEntries(this.about.input.map((name, i) => [name, inputs[i]]));
    for (let i = 0; i < this.stages.length; i++) {
      const made = { ...values, ...(await run(this.stages[i], this.about.stages[i], values)) };
      values = Object.fromEntries(this.about.states[i].map((name) => [name, made[name]]));
      const state = values;
      yield async () => (await run(this.heads[i], this.about.heads[i], state)).logits;
    }
  }

  // Logits and exit of the best prediction within so many milliseconds; the first exit is always waited for.
  async predict(input, deadline = Infinity) {
    const start = performance.now();
    let before = start;
    let exit = 0;
    for await (const answer of this.walk(input)) {
      const now = performance.now();
      this.milliseconds[exit] = Math.min(this.milliseconds[exit] || Infinity, now - before);
      before = now;
      if (exit + 1 === this.stages.length || now - start + 1.1 * this.milliseconds[exit + 1] >= deadline) {
        return { exit, logits: Array.from((await answer()).data) };
      }
      exit++;
    }
  }
}

async function run(session, graph, values) {
  return session.run(Object.fromEntries(graph.inputs.map((name) => [name, values[name]])), graph.outputs);
}

// ort: the module onnxruntime-node or onnxruntime-web; read: from a file's name to a promise of its bytes.
export async function load(ort, read, options = {}) {
  const about = JSON.parse(new TextDecoder().decode(await read("anytime.json")));
  if (about.format !== 1 || about.backend !== "onnx") throw new Error("exported by another version or for another runtime");
  const shared = "shared.bin" in about.files ? [{ path: "shared.bin", data: await read("shared.bin") }] : undefined;
  const session = async ({ file }) => ort.InferenceSession.create(await read(file), { ...options, externalData: shared });
  const sessions = async (graphs) => {
    const made = [];
    for (const graph of graphs) made.push(await session(graph));
    return made;
  };
  return new Exported(about, await sessions(about.stages), await sessions(about.heads), ort);
}

const inNode = typeof process !== "undefined" && process.versions?.node;
if (inNode && process.argv[1]?.endsWith("run_exported.mjs")) {
  const [folder, input, milliseconds] = process.argv.slice(2);
  if (!input) {
    console.error("node run_exported.mjs FOLDER input.json [MILLISECONDS]");
    process.exit(1);
  }
  const { readFile } = await import("node:fs/promises");
  const ort = (await import("onnxruntime-node")).default;
  const net = await load(ort, async (file) => new Uint8Array(await readFile(`${folder}/${file}`)), {
    intraOpNumThreads: 1,
  });
  const x = net.tensor(JSON.parse(await readFile(input, "utf8")));
  for (let i = 0; i < 3; i++) await net.predict(x); // the first run of a graph is slow; these also measure the stages
  const { exit, logits } = await net.predict(x, milliseconds === undefined ? Infinity : Number(milliseconds));
  const best = logits.indexOf(Math.max(...logits));
  const name = net.about.preprocessing?.classes?.[best] ?? "";
  console.log(`exit ${net.about.exits[exit]} of ${net.about.exits.at(-1)}: class ${best} ${name}`);
  console.log(JSON.stringify({ exit, class: best, logits }));
}
