"""What a program does with boto3. Older versions speak the Query protocol, newer ones JSON: ENDPOINT ACCESS SECRET."""
import json
import sys
import time

import boto3
from botocore.config import Config

sqs = boto3.client("sqs", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id=sys.argv[2],
                   aws_secret_access_key=sys.argv[3], config=Config(retries={"max_attempts": 0}))
FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


def refused(code, call, **arguments):
    try:
        call(**arguments)
    except sqs.exceptions.ClientError as e:
        assert e.response["Error"]["Code"] == code, e.response
    else:
        raise AssertionError("not refused: " + code)


def receive(url, **more):
    return sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"],
                               MessageAttributeNames=["All"], **more).get("Messages", [])


dead = sqs.create_queue(QueueName="py-dead.fifo", Attributes=FIFO)["QueueUrl"]
arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
url = sqs.create_queue(QueueName="py.fifo", Attributes={**FIFO, "RedrivePolicy": policy})["QueueUrl"]
assert sqs.get_queue_url(QueueName="py.fifo")["QueueUrl"] == url
attributes = {"s": {"DataType": "String", "StringValue": "<&>\r\n"}, "b": {"DataType": "Binary", "BinaryValue": b"\0\xff"}}
sent = sqs.send_message(QueueUrl=url, MessageGroupId="a", MessageBody="<a1 & \r\n\U0001f600>", MessageAttributes=attributes)
again = sqs.send_message(QueueUrl=url, MessageGroupId="a", MessageBody="<a1 & \r\n\U0001f600>")
assert sent["MessageId"] == again["MessageId"]
entries = [{"Id": str(i), "MessageGroupId": "ab"[i % 2], "MessageBody": f"m{i}"} for i in range(8)]
assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 8
got = receive(url)
assert [m["Body"] for m in got] == ["<a1 & \r\n\U0001f600>", "m0", "m2", "m4", "m6", "m1", "m3", "m5", "m7"], got
assert got[0]["MessageAttributes"] == attributes, got[0]
assert receive(url) == []
sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got[0]["ReceiptHandle"], VisibilityTimeout=0)
first = receive(url)
assert len(first) == 1 and first[0]["Attributes"]["ApproximateReceiveCount"] == "2", "up to m0, which is in flight"
sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"], VisibilityTimeout=0)
assert receive(url) == [], "the message that failed twice is a dead letter"
rest = got[1:]
deleted = sqs.delete_message_batch(
    QueueUrl=url, Entries=[{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(rest)])
assert len(deleted["Successful"]) == 8, deleted
letter = receive(dead, WaitTimeSeconds=5)
assert letter[0]["MessageId"] == sent["MessageId"] and letter[0]["Attributes"]["MessageGroupId"] == "a", letter
assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]

begun = time.time()
assert receive(url, WaitTimeSeconds=1) == [] and time.time() - begun > 0.9
sqs.tag_queue(QueueUrl=url, Tags={"k": "v"})
assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"k": "v"}
assert url in sqs.list_queues(QueueNamePrefix="py")["QueueUrls"]
refused("AWS.SimpleQueueService.NonExistentQueue", sqs.get_queue_url, QueueName="none")
refused("MissingParameter", sqs.send_message, QueueUrl=url, MessageBody="b")
refused("ReceiptHandleIsInvalid", sqs.delete_message, QueueUrl=url, ReceiptHandle="x")
refused("AWS.SimpleQueueService.EmptyBatchRequest", sqs.delete_message_batch, QueueUrl=url, Entries=[])
sqs.purge_queue(QueueUrl=url)
sqs.delete_queue(QueueUrl=url)
refused("AWS.SimpleQueueService.QueueDeletedRecently", sqs.create_queue, QueueName="py.fifo", Attributes=FIFO)
print("ok")
