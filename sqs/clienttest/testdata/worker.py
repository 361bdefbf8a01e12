"""A worker of the ledger, with boto3: ENDPOINT QUEUE-URL ACCESS SECRET. It prints "got BODY MS" for each message, reads
what to do with it, and prints "deleted BODY" or "kept BODY"."""
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

endpoint, url, access, secret = sys.argv[1:]
sqs = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=access,
                   aws_secret_access_key=secret, config=Config(retries={"max_attempts": 0}, read_timeout=5))
while True:
    asked = time.monotonic()
    try:
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3, WaitTimeSeconds=1).get("Messages", [])
    except (BotoCoreError, ClientError):
        time.sleep(0.05)
        continue
    over = set()
    for m in messages:
        group = m["Body"].split(":")[0]
        if group in over:
            try:  # has been done, in the queue of which each receive has a timeout
                sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=m["ReceiptHandle"], VisibilityTimeout=0)
            except (BotoCoreError, ClientError):
                pass
            continue
        print("got", m["Body"], int((time.monotonic() - asked) * 1000), flush=True)
        verdict = sys.stdin.readline().strip()
        if verdict == "":
            sys.exit(0)
        kept = "kept"
        try:
            if verdict == "handle":
                sqs.delete_message(QueueUrl=url, ReceiptHandle=m["ReceiptHandle"])
                kept = "deleted"
            elif verdict == "fail":
                sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=m["ReceiptHandle"], VisibilityTimeout=0)
        except (BotoCoreError, ClientError):
            pass
        if kept == "kept":
            over.add(group)
        print(kept, m["Body"], flush=True)
