<?php
// What a program does with async-aws for PHP: ENDPOINT ACCESS SECRET.
require '/usr/share/php/AsyncAws/Sqs/autoload.php';
require '/usr/share/php/Symfony/Component/HttpClient/autoload.php';

use AsyncAws\Sqs\SqsClient;

[, $endpoint, $access, $secret] = $argv;
ini_set('assert.exception', '1');
$sqs = new SqsClient(['endpoint' => $endpoint, 'region' => 'us-east-1', 'accessKeyId' => $access, 'accessKeySecret' => $secret]);
$url = $sqs->createQueue(['QueueName' => 'php.fifo', 'Attributes' => ['FifoQueue' => 'true', 'ContentBasedDeduplication' => 'true']])->getQueueUrl();
function check(bool $good, string $what): void { if (!$good) { throw new Exception($what); } }
foreach (['a', 'b', 'c'] as $body) {
    $sent = $sqs->sendMessage(['QueueUrl' => $url, 'MessageGroupId' => 'g', 'MessageBody' => "<$body & é>",
        'MessageAttributes' => ['k' => ['DataType' => 'String', 'StringValue' => 'v']]]);
    check($sent->getMd5OfMessageBody() === md5("<$body & é>"), 'md5');
}
$receive = fn (int $wait) => iterator_to_array($sqs->receiveMessage(['QueueUrl' => $url, 'MaxNumberOfMessages' => 10,
    'WaitTimeSeconds' => $wait, 'AttributeNames' => ['All'], 'MessageAttributeNames' => ['All']])->getMessages());
$got = $receive(5);
check(array_map(fn ($m) => $m->getBody(), $got) === ['<a & é>', '<b & é>', '<c & é>'], 'order');
check($got[0]->getMessageAttributes()['k']->getStringValue() === 'v', 'attribute');
check($receive(0) === [], 'held');
$sqs->deleteMessage(['QueueUrl' => $url, 'ReceiptHandle' => $got[0]->getReceiptHandle()])->resolve();
$sqs->changeMessageVisibility(['QueueUrl' => $url, 'ReceiptHandle' => $got[1]->getReceiptHandle(), 'VisibilityTimeout' => 0])->resolve();
$again = $receive(5);
check(count($again) === 1 && $again[0]->getBody() === '<b & é>', 'given back, and c is in flight');
foreach ([...$again, $got[2]] as $m) {
    $sqs->deleteMessage(['QueueUrl' => $url, 'ReceiptHandle' => $m->getReceiptHandle()])->resolve();
}
try {
    $sqs->getQueueUrl(['QueueName' => 'none'])->getQueueUrl();
    check(false, 'there is no such queue');
} catch (AsyncAws\Core\Exception\Http\ClientException $e) {
    check(str_contains((string) $e->getAwsCode(), 'NonExistentQueue') || str_contains((string) $e->getAwsCode(), 'QueueDoesNotExist'),
        'code ' . $e->getAwsCode());
}
$sqs->deleteQueue(['QueueUrl' => $url])->resolve();
echo "ok\n";
