# What a person types: ENDPOINT in $1, keys in the environment.
set -euo pipefail
sqs() { aws --endpoint-url "$endpoint" --region us-east-1 --output text sqs "$@"; }
endpoint=$1
url=$(sqs create-queue --queue-name cli.fifo --attributes FifoQueue=true,ContentBasedDeduplication=true --query QueueUrl)
sqs send-message --queue-url "$url" --message-group-id g --message-body one > /dev/null
sqs send-message --queue-url "$url" --message-group-id g --message-body two > /dev/null
read -r body handle < <(sqs receive-message --queue-url "$url" --query 'Messages[0].[Body,ReceiptHandle]')
[ "$body" = one ]
sqs delete-message --queue-url "$url" --receipt-handle "$handle"
[ "$(sqs receive-message --queue-url "$url" --wait-time-seconds 2 --query 'Messages[0].Body')" = two ]
[ "$(sqs get-queue-attributes --queue-url "$url" --attribute-names All \
  --query Attributes.ApproximateNumberOfMessagesNotVisible)" = 1 ]
sqs delete-queue --queue-url "$url"
echo ok
