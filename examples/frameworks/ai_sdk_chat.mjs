// Vercel's AI SDK: a chat that is printed as it arrives, and a tool that this program runs.
//
//     npm install ai @ai-sdk/openai-compatible
//     node --input-type=module < examples/frameworks/ai_sdk_chat.mjs
//
// OPENAI_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai/v1, OPENAI_API_KEY the account's
// key. For the tool, the endpoint must parse tool calls (ENABLE_AUTO_TOOL_CHOICE=1, TOOL_CALL_PARSER).

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const headers = { Authorization: `Bearer ${apiKey}` };
const { data } = await (await fetch(`${baseURL}/models`, { headers })).json();
const model = createOpenAICompatible({ name: "runpod", baseURL, apiKey })(data[0].id);

for await (const text of streamText({ model, prompt: "Count to ten.", temperature: 0 }).textStream) {
  process.stdout.write(text);
}
console.log();

const job_status = tool({
  inputSchema: jsonSchema({ type: "object", properties: { job_id: { type: "string" } } }),
  execute: ({ job_id }) => ({ status: job_id === "42" ? "COMPLETED" : "IN_QUEUE" }),
});
const { text, steps } = await generateText({
  model,
  prompt: "Is job 42 done?",
  tools: { job_status },
  stopWhen: stepCountIs(4),
  temperature: 0,
});
for (const { toolName, input } of steps.flatMap((step) => step.toolCalls)) {
  console.log(toolName, JSON.stringify(input));
}
console.log(text);
