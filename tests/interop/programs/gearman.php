<?php
// The gearman extension, which wraps libgearman: see README.md.
declare(strict_types=1);

[, $port, $role] = $argv;
$rest = array_slice($argv, 3);

function client(int $port, string $mode, array $jobs): int
{
    $client = new GearmanClient();
    $client->addServer('127.0.0.1', $port);
    $client->setTimeout(20000);
    $show = fn (string $what) => function (GearmanTask $task) use ($what) {
        printf("%s %s %s\n", $task->functionName(), $what, bin2hex((string) $task->data()));
        return GEARMAN_SUCCESS;
    };
    $client->enableExceptionHandler();
    $client->setCompleteCallback($show('complete'));
    $client->setDataCallback($show('data'));
    $client->setWarningCallback($show('warning'));
    $client->setExceptionCallback($show('exception'));
    $client->setFailCallback(fn (GearmanTask $task) => printf("%s failed\n", $task->functionName()) * 0);
    $client->setStatusCallback(fn (GearmanTask $task) => printf(
        "%s status %d %d\n", $task->functionName(), $task->taskNumerator(), $task->taskDenominator()
    ) * 0);
    foreach ($jobs as $job) {
        [$function, $hex] = explode('=', $job);
        if ($mode === 'background') {
            $client->doBackground($function, hex2bin($hex));
            if ($client->returnCode() !== GEARMAN_SUCCESS) {
                return 2;
            }
            echo "$function created\n";
        } else {
            $client->addTask($function, hex2bin($hex));
        }
    }
    if ($mode !== 'background') {
        @$client->runTasks();
    }
    return 0;
}

function worker(int $port, string $prefix): int
{
    $worker = new GearmanWorker();
    $worker->addServer('127.0.0.1', $port);
    $worker->addFunction("$prefix-upper", fn (GearmanJob $job) => strtoupper($job->workload()));
    $worker->addFunction("$prefix-fail", function (GearmanJob $job) {
        $job->setReturn(GEARMAN_WORK_FAIL);
    });
    $worker->addFunction("$prefix-raise", function (GearmanJob $job) {
        $job->sendException('boom');
        $job->setReturn(GEARMAN_WORK_EXCEPTION);
    });
    $worker->addFunction("$prefix-progress", function (GearmanJob $job) {
        $job->sendData('part');
        $job->sendWarning('careful');
        $job->sendStatus(1, 2);
        return 'whole';
    });
    while (true) {
        @$worker->work();
    }
}

exit($role === 'worker' ? worker((int) $port, $rest[0]) : client((int) $port, $rest[0], array_slice($rest, 1)));
