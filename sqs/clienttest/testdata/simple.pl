# What a program does with Amazon::SQS::Simple, which speaks the Query protocol: ENDPOINT ACCESS SECRET. It leaves the
# port out of the Host header, so queues are named by their whole URL here (or else serve with --url), and it signs for
# the service that it reads from AWS's host names, so it needs a server without keys.
use strict;
use warnings;
use Amazon::SQS::Simple;

my ($endpoint, $access, $secret) = @ARGV;
my $sqs = Amazon::SQS::Simple->new($access, $secret, Endpoint => $endpoint, Region => 'us-east-1');
$sqs->CreateQueue('perl');
my $queue = $sqs->GetQueue("$endpoint/000000000000/perl");
my %left = map { ("<m$_ & x>" => 1) } 0 .. 4;
$queue->SendMessage($_) for keys %left;
for (1 .. 50) {
    for my $m ($queue->ReceiveMessageBatch(MaxNumberOfMessages => 10)) {
        delete $left{ $m->MessageBody } or die 'body ' . $m->MessageBody;
        $queue->DeleteMessage($m);
    }
    last unless %left;
}
die 'left: ' . join ' ', keys %left if %left;
die 'listed' unless grep { $_->Endpoint =~ m{/perl$} } @{ $sqs->ListQueues };
my $attributes = $queue->GetAttributes;
die 'timeout' unless $attributes->{VisibilityTimeout} == 30;
$queue->Delete;
print "ok\n";
