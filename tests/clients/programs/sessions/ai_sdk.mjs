// Sessions of Vercel's AI SDK: `node --input-type=module - BASE_URL < ai_sdk.mjs`, where it is
// installed.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "runpod", baseURL: `${baseURL}/v1`, apiKey: "any", supportsStructuredOutputs: true,
});
const model = provider("demo");
const tools = {
  job_status: tool({
    description: "The status of a job.",
    inputSchema: jsonSchema({ type: "object", properties: { job_id: { type: "string" } } }),
    execute: ({ job_id }) => ({ status: job_id === "42" ? "COMPLETED" : "IN_QUEUE" }),
  }),
  list_jobs: tool({
    description: "List jobs.",
    inputSchema: z.object({ status: z.enum(["any", "done"]), limit: z.number().int().max(10) }),
    execute: () => [],
  }),
};
const LAST = "All is done.", MAX_SESSIONS = 10;

for (const call of [generateText, streamText]) {
  const messages = [{ role: "user", content: [{ type: "text", text: "Is job 42 done?" }] }];
  // A step without a call ends the SDK's own loop.
  for (let session = 0; ; session++) {
    if (session === MAX_SESSIONS) throw new Error("the script has no end");
    let text = "";
    try {
      const result = await call({
        model, system: "Be brief.", messages, tools, stopWhen: stepCountIs(40), maxRetries: 0,
        onError: () => {},
      });
      text = await result.text;
      messages.push(...(await result.response).messages);
    } catch {
      // The stream broke off.
    }
    // The SDK itself refuses a call without its result.
    const { role, content } = messages.at(-1);
    if (role === "assistant" && content.some(({ type }) => type === "tool-call")) messages.pop();
    messages.push({ role: "user", content: "Go on." });
    if (text === LAST) break;
  }
}
const schema = z.object({ name: z.string(), streams: z.boolean(), chunks: z.array(z.number()) });
await generateObject({ model, schema, prompt: "Describe the worker." });
await generateObject({ model, schema, mode: "json", prompt: "Describe the worker." });
await embedMany({ model: provider.textEmbeddingModel("minilm"), values: ["Hi", "Hello"] });
