#!/usr/bin/perl
# Gearman::Client and Gearman::Worker: see README.md.
use strict;
use warnings;
use Gearman::Client;
use Gearman::Worker;

$| = 1;
my ($port, $role, @rest) = @ARGV;
my $servers = ["127.0.0.1:$port"];

sub client {
    my ($mode, @jobs) = @_;
    my $client = Gearman::Client->new(job_servers => $servers, exceptions => 1);
    my $tasks = $client->new_task_set;
    for (@jobs) {
        my ($function, $hex) = split /=/;
        my $payload = pack 'H*', $hex;
        if ($mode eq 'background') {
            $client->dispatch_background($function, \$payload) or die "$function was not created";
            print "$function created\n";
            next;
        }
        $tasks->add_task($function, \$payload, {
            on_complete => sub { printf "%s complete %s\n", $function, unpack 'H*', ${$_[0]} },
            on_fail => sub { print "$function failed\n" },
            on_exception => sub { printf "%s exception %s\n", $function, unpack 'H*', $_[0] },
            on_data => sub { printf "%s data %s\n", $function, unpack 'H*', ${$_[0]} },
            on_warning => sub { printf "%s warning %s\n", $function, unpack 'H*', ${$_[0]} },
            on_status => sub { print "$function status $_[0] $_[1]\n" },
        });
    }
    $tasks->wait(timeout => 20) if $mode ne 'background';
}

sub worker {
    my ($prefix) = @_;
    my $worker = Gearman::Worker->new(job_servers => $servers);
    $worker->register_function("$prefix-upper" => sub { (my $data = $_[0]->arg) =~ tr/a-z/A-Z/; $data });
    $worker->register_function("$prefix-fail" => sub { undef });
    $worker->register_function("$prefix-raise" => sub { die "boom\n" });
    $worker->register_function("$prefix-progress" => sub {
        my $job = shift;
        $worker->send_work_data($job, 'part');
        $worker->send_work_warning($job, 'careful');
        $job->set_status(1, 2);
        'whole';
    });
    $worker->register_function("$prefix-empty" => sub { '' });
    $worker->register_function("$prefix-zero" => sub { 0 });
    $worker->work while 1;
}

$role eq 'worker' ? worker(@rest) : client(@rest);
