#!/bin/sh
# Stands where cargo looks for its compiler: answers cargo's questions, and compiles as soon as the file `go` is there.
out= extra=
for word; do
    case $previous$word in
    -vV)
        printf 'rustc 1.90.0 (1159e78c4 2025-09-14)\nbinary: rustc\ncommit-hash: 1159e78c4\ncommit-date: 2025-09-14\n'
        printf 'host: x86_64-unknown-linux-gnu\nrelease: 1.90.0\nLLVM version: 20.1.8\n'
        exit ;;
    --print=cfg)
        printf '___\nlib___.rlib\nlib___.so\nlib___.so\nlib___.a\nlib___.so\n/workspace\noff\n___\n'
        printf 'debug_assertions\npanic="unwind"\ntarget_arch="x86_64"\ntarget_env="gnu"\ntarget_family="unix"\ntarget_os="linux"\nunix\n'
        exit ;;
    --out-dir*) out=${word#--out-dir} ;;
    *extra-filename=*) extra=${word#*extra-filename=} ;;
    esac
    previous=; [ "$word" = --out-dir ] && previous=$word
done
echo waiting >waiting
until [ -e go ]; do sleep 0.05; done
cp go "$out/w$extra"
printf '%s: src/main.rs\n\nsrc/main.rs:\n' "$out/w$extra" >"$out/w$extra.d"
