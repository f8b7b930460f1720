/* Programs that check themselves: whoever is stopped, asked and let go by a capture must not notice.
 *
 * Each counts in a file of its name, twenty digits, and writes what it notices into `errors`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void notice(const char *who, const char *what, long value)
{
	char text[200];
	int length = snprintf(text, sizeof text, "%s: %s (%ld)\n", who, what, value);
	int fd = open("errors", O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (fd < 0 || write(fd, text, length) != length)
		abort();
	_exit(1);
}

static int counter = -1;

static void count(const char *name)
{
	static uint64_t n;
	char text[24];
	if (counter < 0)
		counter = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	snprintf(text, sizeof text, "%020llu", (unsigned long long)++n);
	if (pwrite(counter, text, 20, 0) != 20)
		notice(name, "a write came to nothing", errno);
}

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* Waits for ever, each in its own way: none of these calls may come back. */
static void *in_epoll(void *unused)
{
	struct epoll_event event;
	int fd = epoll_create1(0);
	int got = epoll_wait(fd, &event, 1, -1);
	notice("in_epoll", "epoll_wait came back", got < 0 ? -errno : got);
	return unused;
}
static void *in_timed_epoll(void *unused)
{
	struct epoll_event event;
	sigset_t set;
	sigfillset(&set);
	int got = epoll_pwait(epoll_create1(0), &event, 1, 100000000, &set);
	notice("in_timed_epoll", "epoll_pwait came back", got < 0 ? -errno : got);
	return unused;
}
static void *in_signals(void *unused)
{
	sigset_t set;
	siginfo_t info;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	int got = sigwaitinfo(&set, &info);
	notice("in_signals", "sigwaitinfo came back", got < 0 ? -errno : got);
	return unused;
}
static void *in_poll(void *unused)
{
	int got = poll(NULL, 0, -1);
	notice("in_poll", "poll came back", got < 0 ? -errno : got);
	return unused;
}
static void *in_timed_poll(void *unused)
{
	int got = poll(NULL, 0, 100000000);
	notice("in_timed_poll", "poll came back", got < 0 ? -errno : got);
	return unused;
}
static void *in_sleep(void *unused)
{
	struct timespec t = { 100000, 0 };
	int got = nanosleep(&t, NULL);
	notice("in_sleep", "nanosleep came back", got < 0 ? -errno : got);
	return unused;
}
static void *in_condition(void *unused)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
	pthread_mutex_lock(&mutex);
	pthread_cond_wait(&never, &mutex);
	notice("in_condition", "the condition came true", 0);
	return unused;
}
static void *in_timed_receive(void *unused)
{
	int pair[2];
	char byte;
	struct timeval limit = { 100000, 0 };
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit))
		notice("in_timed_receive", "no socket", errno);
	long got = recv(pair[0], &byte, 1, 0);
	notice("in_timed_receive", "recv came back", got < 0 ? -errno : got);
	return unused;
}

/* A server in epoll_wait, its client, and threads that wait. */
static void server(void)
{
	void *(*waits[])(void *) = { in_epoll, in_timed_epoll, in_signals, in_poll, in_timed_poll, in_sleep, in_condition, in_timed_receive };
	struct epoll_event event = { .events = EPOLLIN };
	int pair[2], epoll = epoll_create1(0);
	sigset_t set;
	char byte;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		notice("server", "no socket", errno);
	if (fork() == 0) {
		/* Alone and forgotten: of the program it has only the end of the pair. */
		close(pair[0]);
		struct timespec t = { 0, 3000000 };
		for (;;) {
			if (nanosleep(&t, NULL))
				notice("client", "nanosleep came back early", errno);
			if (write(pair[1], "x", 1) != 1 || read(pair[1], &byte, 1) != 1)
				notice("client", "no answer", errno);
		}
	}
	close(pair[1]);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (unsigned i = 0; i < sizeof waits / sizeof *waits; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, waits[i], NULL))
			notice("server", "no thread", i);
	}
	epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event);
	for (;;) {
		int got = epoll_wait(epoll, &event, 1, -1);
		if (got != 1)
			notice("server", "epoll_wait failed", got < 0 ? -errno : got);
		if (read(pair[0], &byte, 1) != 1 || write(pair[0], "y", 1) != 1)
			notice("server", "the client is gone", errno);
		count("server");
	}
}

/* Short waits with a limit: each lasts as long as it should, and ends as it should. */
static void timed(void)
{
	const int64_t limit = 3000;
	struct timespec t = { 0, limit * 1000 };
	uint32_t word = 7;
	for (;;) {
		int64_t begun = now_us();
		if (nanosleep(&t, NULL))
			notice("timed", "nanosleep failed", errno);
		if (now_us() - begun < limit)
			notice("timed", "nanosleep was short", now_us() - begun);
		begun = now_us();
		int got = poll(NULL, 0, 3);
		if (got)
			notice("timed", "poll failed", errno);
		if (now_us() - begun < limit)
			notice("timed", "poll was short", now_us() - begun);
		begun = now_us();
		if (!syscall(SYS_futex, &word, FUTEX_WAIT, 7, &t, NULL, 0) || errno != ETIMEDOUT)
			notice("timed", "futex failed", errno);
		if (now_us() - begun < limit)
			notice("timed", "futex was short", now_us() - begun);
		count("timed");
	}
}

#define EACH(one) one(0) one(1) one(2) one(3) one(4) one(5) one(6) one(7) one(8) one(9) one(10) one(11) one(12) one(13) one(14) one(15)
#define TEXT(x) #x
#define LOAD_XMM(n) "movdqu " TEXT(n) "*32(%[in]), %%xmm" TEXT(n) "\n"
#define STORE_XMM(n) "movdqu %%xmm" TEXT(n) ", " TEXT(n) "*32(%[out])\n"
#define LOAD_YMM(n) "vmovdqu " TEXT(n) "*32(%[in]), %%ymm" TEXT(n) "\n"
#define STORE_YMM(n) "vmovdqu %%ymm" TEXT(n) ", " TEXT(n) "*32(%[out])\n"
/* General registers from in[512..], the flags, and the 128 bytes below the stack pointer; then a while of nothing. */
#define SPIN(load, store) \
	asm volatile(load \
		"mov 512(%[in]), %%r8\n mov 520(%[in]), %%r9\n mov 528(%[in]), %%r10\n mov 536(%[in]), %%r11\n" \
		"mov 544(%[in]), %%r12\n mov 552(%[in]), %%r13\n mov 560(%[in]), %%r14\n mov 568(%[in]), %%r15\n" \
		"push %%r8\n pushfq\n andq $~0xcd5, (%%rsp)\n mov 576(%[in]), %%rax\n or %%rax, (%%rsp)\n popfq\n" \
		"mov %%r9, -8(%%rsp)\n mov %%r10, -120(%%rsp)\n mov $60000, %%ecx\n" \
		"1: lea -1(%%rcx), %%rcx\n jrcxz 2f\n jmp 1b\n" \
		"2: mov -8(%%rsp), %%rcx\n mov -120(%%rsp), %%rdx\n pushfq\n pop %%rax\n cld\n mov %%rax, 576(%[out])\n pop %%rax\n" \
		"mov %%rax, 584(%[out])\n mov %%rcx, 592(%[out])\n mov %%rdx, 600(%[out])\n" \
		"mov %%r8, 512(%[out])\n mov %%r9, 520(%[out])\n mov %%r10, 528(%[out])\n mov %%r11, 536(%[out])\n" \
		"mov %%r12, 544(%[out])\n mov %%r13, 552(%[out])\n mov %%r14, 560(%[out])\n mov %%r15, 568(%[out])\n" store \
		: : [in] "r"(in), [out] "r"(out) \
		: "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", \
		  "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

static volatile sig_atomic_t ticks;

static void tick(int signal)
{
	/* Whatever it does to the registers, the interrupted code must not see it. */
	asm volatile("pxor %%xmm0, %%xmm0\n xor %%r8d, %%r8d\n xor %%r15d, %%r15d" : : : "xmm0", "r8", "r15", "cc");
	ticks += signal != 0;
}

/* A spinner that looks whether its registers are its own, under a timer. */
static void spin(void)
{
	static _Alignas(64) unsigned char in[640], out[640];
	struct itimerval every = { { 0, 2000 }, { 0, 2000 } };
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
	int wide = __builtin_cpu_supports("avx"), seen = 0;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	for (uint64_t seed = 1;; seed++) {
		uint64_t flags = seed & 0xcd5;
		for (unsigned i = 0; i < 576; i++)
			in[i] = seed * 2654435761u >> (i % 24) ^ i;
		memcpy(in + 576, &flags, 8);
		memset(out, 0, sizeof out);
		if (wide)
			SPIN(EACH(LOAD_YMM), EACH(STORE_YMM));
		else
			SPIN(EACH(LOAD_XMM), EACH(STORE_XMM));
		for (unsigned i = 0; i < 512; i++)
			if (in[i] != out[i] && (wide || i % 32 < 16))
				notice("spin", "a vector register changed, byte", i);
		if (memcmp(in + 512, out + 512, 64))
			notice("spin", "a general register changed", 0);
		memcpy(&flags, out + 576, 8);
		if ((flags & 0xcd5) != (seed & 0xcd5))
			notice("spin", "the flags changed", (long)(flags ^ seed));
		if (memcmp(in + 512, out + 584, 24))
			notice("spin", "the stack changed", 0);
		if (seed % 64 == 0) {
			if (ticks == seen)
				usleep(2500);
			if (ticks == seen)
				notice("spin", "the timer stands still", ticks);
			seen = ticks;
			count("spin");
		}
	}
}

/* For adoption: a process in the middle of vfork, and one that is traced by another of the sandbox. */
static void vforker(void)
{
	count("vforker");
	if (vfork() == 0) {
		struct timespec t = { 100000, 0 };
		nanosleep(&t, NULL);
		_exit(0);
	}
}
static void tracer(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		for (;;)
			pause();
	}
	if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || ptrace(PTRACE_CONT, child, 0, 0))
		notice("tracer", "cannot trace", errno);
	count("tracer");
	waitpid(child, &status, 0);
}

int main(int argc, char **argv)
{
	struct { const char *name; void (*run)(void); } all[] = {
		{ "server", server }, { "timed", timed }, { "spin", spin }, { "vforker", vforker }, { "tracer", tracer },
	};
	for (unsigned i = 0; argc == 2 && i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name))
			all[i].run();
	return 2;
}
