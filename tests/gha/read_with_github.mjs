// Reads YAML with the library in GitHub's own workflow parser.
//
// stdin: a list of texts; stdout: for each the value, numbers as {"number": text}, or {"error": message}
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const YAML = createRequire(new URL("../engine/package.json", import.meta.url))("yaml");

function told(value) {
  if (typeof value === "number") return { number: String(value) };
  if (Array.isArray(value)) return value.map(told);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, told(item)]));
}

function read(text) {
  const document = YAML.parseDocument(text, { uniqueKeys: false });
  return document.errors.length ? { error: document.errors[0].message } : told(document.toJS());
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(read)));
