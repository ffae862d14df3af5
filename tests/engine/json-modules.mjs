// @actions/workflow-parser imports its JSON schema without an import attribute, which Node 20 and later refuse.
// This hook hands any .json file over as a module with a default export. Import it before the parser.
import { register } from "node:module";

const hook = `
  import { readFile } from "node:fs/promises";
  export async function load(url, context, next) {
    if (!url.startsWith("file:") || !url.endsWith(".json")) return next(url, context);
    const source = "export default " + (await readFile(new URL(url), "utf8"));
    return { format: "module", source, shortCircuit: true };
  }`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
