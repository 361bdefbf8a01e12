// What a program does with the SDK for JavaScript, version 2, which speaks the Query protocol or JSON by its age:
// ENDPOINT ACCESS SECRET FOLDER, where FOLDER has node_modules.
const [endpoint, accessKeyId, secretAccessKey, folder] = process.argv.slice(2);
const assert = require("node:assert");
const AWS = require("node:module").createRequire(folder + "/package.json")("aws-sdk");

const sqs = new AWS.SQS({ endpoint, region: "us-east-1", accessKeyId, secretAccessKey, maxRetries: 0 });
(async () => {
  const { QueueUrl } = await sqs.createQueue({
    QueueName: "js2.fifo", Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true" },
  }).promise();
  const Entries = ["a", "b", "c"].map((b) => ({ Id: b, MessageGroupId: "g", MessageBody: `<${b} & \u{1F600}>` }));
  assert.equal((await sqs.sendMessageBatch({ QueueUrl, Entries }).promise()).Successful.length, 3);
  const receive = async (WaitTimeSeconds) => (await sqs.receiveMessage({
    QueueUrl, WaitTimeSeconds, MaxNumberOfMessages: 10, AttributeNames: ["All"],
  }).promise()).Messages ?? [];
  const got = await receive(5);
  assert.deepEqual(got.map((m) => m.Body), Entries.map((e) => e.MessageBody));
  assert.equal(got[0].Attributes.MessageGroupId, "g");
  assert.deepEqual(await receive(0), []);
  await sqs.changeMessageVisibility({ QueueUrl, ReceiptHandle: got[0].ReceiptHandle, VisibilityTimeout: 0 }).promise();
  const again = await receive(5);
  assert.deepEqual(again.map((m) => m.Body), Entries.slice(0, 1).map((e) => e.MessageBody)); // b and c are in flight
  const deleted = await sqs.deleteMessageBatch({
    QueueUrl, Entries: again.concat(got.slice(1)).map((m) => ({ Id: m.MessageId, ReceiptHandle: m.ReceiptHandle })),
  }).promise();
  assert.equal(deleted.Successful.length, 3);
  await assert.rejects(sqs.getQueueUrl({ QueueName: "none" }).promise(), (e) => /NonExistentQueue|QueueDoesNotExist/.test(e.code));
  await sqs.deleteQueue({ QueueUrl }).promise();
  console.log("ok");
})().catch((e) => { console.error(e); process.exit(1); });
