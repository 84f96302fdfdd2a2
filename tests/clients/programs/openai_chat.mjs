// The openai client for Node against an endpoint:
// `node --input-type=module - BASE_URL MODEL < openai_chat.mjs`, where the client is installed.

import OpenAI from "openai";

const MESSAGES = [{ role: "user", content: "What does this worker do?" }];
const [baseURL, model] = process.argv.slice(2);
const { completions } = new OpenAI({ baseURL, apiKey: "any" }).chat;

async function refusal() {
  try {
    await completions.create({ model: "nope", messages: MESSAGES });
  } catch (error) {
    return { error: error.constructor.name, status: error.status, message: error.message };
  }
  throw new Error("A model that is not there has answered");
}

const body = { model, messages: MESSAGES, temperature: 0 };
const whole = await completions.create(body);
const pieces = [];
for await (const event of await completions.create({ ...body, stream: true })) {
  pieces.push(event.choices[0].delta.content ?? "");
}
const answers = { whole: whole.choices[0].message.content, pieces, refusal: await refusal() };
process.stdout.write(JSON.stringify(answers));
