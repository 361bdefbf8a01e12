// What a program does with the SDK for JavaScript, and a consumer library whose handler fails at first:
// ENDPOINT ACCESS SECRET FOLDER, where FOLDER has node_modules.
import { createRequire } from "node:module";
import assert from "node:assert";

const [endpoint, accessKeyId, secretAccessKey, folder] = process.argv.slice(2);
const require = createRequire(folder + "/package.json");
const { SQSClient, CreateQueueCommand, SendMessageCommand, ReceiveMessageCommand, DeleteMessageCommand, GetQueueUrlCommand } =
  require("@aws-sdk/client-sqs");
const { Consumer } = require("sqs-consumer");

const sqs = new SQSClient({ endpoint, region: "us-east-1", credentials: { accessKeyId, secretAccessKey } });
const { QueueUrl } = await sqs.send(new CreateQueueCommand({
  QueueName: "js.fifo", Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true", VisibilityTimeout: "5" },
}));
await assert.rejects(sqs.send(new GetQueueUrlCommand({ QueueName: "none" })), { name: "QueueDoesNotExist" });
const send = (MessageGroupId, MessageBody) => sqs.send(new SendMessageCommand({ QueueUrl, MessageGroupId, MessageBody,
  MessageAttributes: { b: { DataType: "Binary", BinaryValue: Uint8Array.of(0, 255) } } }));
await send("g", "first");
const { Messages } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MessageAttributeNames: ["All"] }));
assert.deepEqual([...Messages[0].MessageAttributes.b.BinaryValue], [0, 255]);
await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: Messages[0].ReceiptHandle }));

const want = { a: [], b: [] }, handled = { a: [], b: [] };
for (let i = 0; i < 20; i++) for (const g of ["a", "b"]) { want[g].push(`${g}${i}`); await send(g, `${g}${i}`); }
const failed = new Set();
const consumer = Consumer.create({
  queueUrl: QueueUrl, sqs, batchSize: 5, waitTimeSeconds: 1, terminateVisibilityTimeout: true, suppressFifoWarning: true,
  // A batch of a FIFO queue: stop at the first failure, and return what was done.
  handleMessageBatch: async (messages) => {
    const done = [], over = new Set();
    for (const m of messages) {
      const group = m.Body[0];
      if (over.has(group)) continue;
      if (m.Body.endsWith("7") && !failed.has(m.Body)) { failed.add(m.Body); over.add(group); continue; }
      handled[group].push(m.Body);
      done.push(m);
    }
    return done;
  },
});
consumer.on("error", (e) => { throw e; });
consumer.start();
const begun = Date.now();
while (handled.a.length + handled.b.length < 40 && Date.now() - begun < 60_000) await new Promise((r) => setTimeout(r, 50));
consumer.stop({ abort: true });
assert.deepEqual(handled, want);
console.log("ok");
process.exit(0);
