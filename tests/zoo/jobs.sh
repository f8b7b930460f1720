#!/usr/bin/env bash
# The zoo's shell: a job that is a pipeline with job control, counted into a file, watched by the shell that started it.
set -m
home=$1
cd "$home" || exit 1
while sleep 0.05; do echo tick; done | {
    count=0
    while read -r _; do
        count=$((count + 1))
        echo "$count" >jobs.count.new && mv jobs.count.new jobs.count
    done
} &
pipeline=$!
round=0
while sleep 0.1; do
    round=$((round + 1))
    jobs -rp >jobs.list
    echo "$round $(grep -c . jobs.list) $pipeline" >jobs.shell.new && mv jobs.shell.new jobs.shell
done
