// A program that knows the AI SDK and nothing of the server: it finds the model in its environment, carries out the
// scenario that its argument names, and prints what came of it as JSON.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "swarm",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider.chatModel("default");

const multiply = tool({
  description: "The product of two numbers",
  inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
  execute: async ({ a, b }) => String(a * b),
});

const verdict = Output.object({
  schema: z.object({ colour: z.enum(["red", "green"]), isSure: z.boolean() }),
});

const scenarios = {
  async stream() {
    const result = streamText({ model, prompt: "Reverse: ABCD" });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    return { pieces, outputTokens: (await result.usage).outputTokens, finish: await result.finishReason };
  },

  async settings() {
    const result = await generateText({
      model,
      prompt: "Reverse: ABC",
      temperature: 0.7,
      topP: 0.9,
      presencePenalty: 0.5,
      frequencyPenalty: -0.5,
      stopSequences: ["Z"],
      seed: 7,
      maxOutputTokens: 30,
    });
    return { text: result.text, warnings: result.warnings };
  },

  async tools() {
    const settings = { model, tools: { multiply }, stopWhen: stepCountIs(3) };
    const result = await generateText({ ...settings, system: "You are good with numbers.", prompt: "6 * 7?" });
    return { text: result.text, steps: result.steps.length, results: result.steps[0].toolResults.map((r) => r.output) };
  },

  async streamedTools() {
    const settings = { model, tools: { multiply }, stopWhen: stepCountIs(3) };
    const result = streamText({ ...settings, prompt: "6 * 7?" });
    let text = "";
    for await (const piece of result.textStream) text += piece;
    const steps = await result.steps;
    return { text, steps: steps.length, results: steps[0].toolResults.map((r) => r.output) };
  },

  async object() {
    const result = await generateText({ model, output: verdict, prompt: "Which colour?" });
    return { object: result.output };
  },
};

console.log(JSON.stringify(await scenarios[process.argv[2]]()));
