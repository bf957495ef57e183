// Streams one answer of a Tandem gateway over gRPC, with stubs made from its protos.
//
// TANDEM_ADDRESS=http://127.0.0.1:8001 node chat.js "Why is the sky blue?"
// TANDEM_API_KEY is sent when it is set; an address with https:// is encrypted.

import { BinaryReader } from "@bufbuild/protobuf/wire";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { FinishReason, Mode } from "./gen/protos/tandem/v1/common_pb.js";
import { InferenceService } from "./gen/protos/tandem/v1/inference_pb.js";

const address = process.env.TANDEM_ADDRESS ?? "http://127.0.0.1:8001";
const key = process.env.TANDEM_API_KEY;
const question = process.argv[2] ?? "Why is the sky blue?";

const client = createClient(InferenceService, createGrpcTransport({ baseUrl: address }));
const leaving = new AbortController(); // an abort ends the request at the gateway, too
process.once("SIGINT", () => leaving.abort());

/** The gateway's stable code of an error: `reason`, field 1 of google.rpc.ErrorInfo. */
function reasonOf(error) {
  const info = error.details.find((detail) => detail.type === "google.rpc.ErrorInfo");
  const reader = new BinaryReader(info?.value ?? new Uint8Array());
  while (reader.pos < reader.len) {
    const [field, wire] = reader.tag();
    if (field === 1) return reader.string();
    reader.skip(wire, field);
  }
  return "";
}

try {
  const events = client.generate(
    {
      prompt: {
        case: "conversation",
        value: { messages: [{ role: "user", content: question }] },
      },
      // A message that is sent replaces all defaults, so every field that matters is in it.
      sampling: { temperature: 0, topP: 1 },
      stop: { maxTokens: 48 },
      options: { mode: Mode.BOTH, keepRate: 0.2 },
    },
    {
      timeoutMs: 60_000,
      signal: leaving.signal,
      headers: key ? { authorization: `Bearer ${key}` } : {},
    },
  );
  for await (const { event } of events) {
    if (event.case === "delta") {
      process.stdout.write(event.value.text);
    } else if (event.case === "finished") {
      const { reason, usage, report } = event.value;
      console.log(`\n${FinishReason[reason]}: ${usage.completionTokens} tokens`);
      console.log(`kept ${report.keptTokens} of ${report.promptTokens}, by ${report.transport}`);
    }
  }
} catch (thrown) {
  const error = ConnectError.from(thrown);
  console.error(`${reasonOf(error) || Code[error.code]}: ${error.rawMessage}`);
  process.exitCode = 1;
}
