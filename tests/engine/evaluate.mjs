// Which jobs of a workflow run, by GitHub's own parser and expression engine.
//
// stdin:  {"workflow": "text of the file", "scenarios": [{"github": {...}, "inputs": {...},
//          "outputs": {"plan": {...}}, "results": {"job": "failure"}, "cancelled_after": "job"}]}
// stdout: {"errors": [...], "scenarios": [{"runs": [...], "results": {...}, "matrix": {"job": [...]}, "group": "..."}]}
//
// `results` and `outputs` say how a job ends if it runs; the default is success without outputs.
import { readFileSync } from "node:fs";
import "./json-modules.mjs";

const { convertWorkflowTemplate, parseWorkflow, NoOperationTraceWriter } = await import("@actions/workflow-parser");
const { Evaluator, Lexer, Parser, data } = await import("@actions/expressions");
const { truthy } = await import("@actions/expressions/result");
const YAML = (await import("yaml")).default;

const STATUS = ["always", "success", "failure", "cancelled"];
const value = (thing) => JSON.parse(JSON.stringify(thing), data.reviver);

function evaluate(text, contexts, status) {
  const call = (name) => ({ name, minArgs: 0, maxArgs: 255, call: () => new data.BooleanData(status[name]()) });
  const functions = STATUS.map(call);
  const tokens = new Lexer(text).lex().tokens;
  const tree = new Parser(tokens, Object.keys(contexts), functions).parse();
  const pairs = Object.entries(contexts).map(([key, one]) => ({ key, value: value(one) }));
  return new Evaluator(tree, new data.Dictionary(...pairs), new Map(functions.map((one) => [one.name, one]))).evaluate();
}

// A text of the file with its `${{ }}` parts replaced by their values.
function filled(text, contexts, status) {
  const whole = /^\$\{\{(.*)\}\}$/s.exec(text);
  if (whole && !whole[1].includes("}}")) return evaluate(whole[1], contexts, status);
  return text.replace(/\$\{\{(.*?)\}\}/gs, (_, expression) => evaluate(expression, contexts, status).coerceString());
}

function simulate(template, raw, scenario) {
  const results = {}, matrix = {}, runs = [];
  // A person cancels the run once this job has ended: what has not begun sees cancelled().
  let cancelled = false;
  const github = { run_id: "1", run_attempt: "1", ref: "refs/heads/main", ...scenario.github };
  const parents = Object.fromEntries(template.jobs.map((job) => [job.id.value, (job.needs ?? []).map((one) => one.value)]));
  const ancestors = (id) => parents[id].flatMap((one) => [one, ...ancestors(one)]);
  const pending = template.jobs.map((job) => job.id.value);
  while (pending.length) {
    const id = pending.find((one) => parents[one].every((parent) => parent in results));
    pending.splice(pending.indexOf(id), 1);
    const job = template.jobs.find((one) => one.id.value === id);
    const outputs = (parent) => (results[parent] === "skipped" ? {} : scenario.outputs?.[parent] ?? {});
    const needs = Object.fromEntries(parents[id].map((one) => [one, { result: results[one], outputs: outputs(one) }]));
    const contexts = { github, inputs: scenario.inputs ?? {}, vars: {}, needs };
    // success() and failure() look at all ancestors, not at the direct needs alone.
    const status = {
      always: () => true,
      cancelled: () => cancelled,
      success: () => !cancelled && ancestors(id).every((one) => results[one] === "success"),
      failure: () => ancestors(id).some((one) => results[one] === "failure"),
    };
    if (truthy(evaluate(job.if?.expression ?? "success()", contexts, status))) {
      runs.push(id);
      results[id] = scenario.results?.[id] ?? "success";
      const vector = raw.jobs[id].strategy?.matrix?.shard;
      if (typeof vector === "string") {
        const list = filled(vector, contexts, status);
        matrix[id] = JSON.parse(JSON.stringify(list, data.replacer));
      }
    } else {
      results[id] = "skipped";
    }
    cancelled ||= scenario.cancelled_after === id;
  }
  const group = raw.concurrency?.group ?? "";
  const text = filled(group, { github, inputs: scenario.inputs ?? {}, vars: {} }, {});
  return { runs, results, matrix, group: typeof text === "string" ? text : text.coerceString() };
}

const { workflow, scenarios } = JSON.parse(readFileSync(0, "utf8"));
const parsed = parseWorkflow({ name: "workflow.yml", content: workflow }, new NoOperationTraceWriter());
const template = parsed.value && (await convertWorkflowTemplate(parsed.context, parsed.value));
const errors = parsed.context.errors.getErrors().map((one) => one.message);
const raw = YAML.parse(workflow);
const found = errors.length ? [] : scenarios.map((one) => simulate(template, raw, one));
console.log(JSON.stringify({ errors, scenarios: found }));
