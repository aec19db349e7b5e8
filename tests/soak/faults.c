/* A disk that fails on command: preloaded, it stands between a process and what changes files below one folder.

   Calls that write, sync, truncate, rename, remove or create are counted. The one with a given number fails, or ends the
   process: see `soak/disk.py`. Reads and memory maps are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { NEVER, ONCE, FULL, DEAD, KILL, TORN };

static char root[4096];
static long at, seen;
static int how = NEVER, busy;

void fault_arm(const char *folder, long number, int kind) {
    strncpy(root, folder, sizeof root - 1);
    at = number;
    seen = 0;
    how = kind;
}

long fault_seen(void) { return seen; }

static int below(const char *path) { return path && how && !strncmp(path, root, strlen(root)); }

static int open_below(int fd) {
    char link[64], path[4096];
    if (!how || busy) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return below(path);
}

/* Counts a call; returns the error it is to fail with, 0 if it is to work, -1 if the process is to end in the midst of it. */
static int strike(int takes_space) {
    ++seen;
    if (seen < at || (seen > at && how != FULL && how != DEAD)) return 0;
    switch (how) {
    case ONCE: return EIO;
    case DEAD: return EIO;
    case FULL: return takes_space ? ENOSPC : 0;
    case KILL: kill(getpid(), SIGKILL); return 0;
    case TORN: return -1;
    default: return 0;
    }
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(code) do { errno = (code); return -1; } while (0)

#define WRITES(name, parameters, half, whole)                  \
    ssize_t name parameters {                                  \
        REAL(name);                                            \
        if (open_below(fd)) {                                  \
            int code = strike(1);                              \
            if (code > 0) FAIL(code);                          \
            if (code < 0) { half; kill(getpid(), SIGKILL); }   \
        }                                                      \
        return whole;                                          \
    }

WRITES(write, (int fd, const void *data, size_t size), real(fd, data, size / 2), real(fd, data, size))
WRITES(pwrite, (int fd, const void *data, size_t size, off_t place), real(fd, data, size / 2, place), real(fd, data, size, place))
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t place), real(fd, data, size / 2, place), real(fd, data, size, place))

#define CHANGES(name, parameters, touches, space, whole)                     \
    int name parameters {                                                    \
        REAL(name);                                                          \
        if (touches) {                                                       \
            int code = strike(space);                                        \
            if (code > 0) FAIL(code);                                        \
            if (code < 0) { whole; kill(getpid(), SIGKILL); }                \
        }                                                                    \
        return whole;                                                        \
    }

CHANGES(fsync, (int fd), open_below(fd), 0, real(fd))
CHANGES(fdatasync, (int fd), open_below(fd), 0, real(fd))
CHANGES(ftruncate, (int fd, off_t size), open_below(fd), 0, real(fd, size))
CHANGES(ftruncate64, (int fd, off64_t size), open_below(fd), 0, real(fd, size))
CHANGES(unlink, (const char *path), below(path), 0, real(path))
CHANGES(rename, (const char *from, const char *to), below(from), 0, real(from, to))
CHANGES(mkdir, (const char *path, mode_t mode), below(path), 1, real(path, mode))

#define OPENS(name)                                                          \
    int name(const char *path, int flags, ...) {                             \
        REAL(name);                                                          \
        va_list rest;                                                        \
        va_start(rest, flags);                                               \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;            \
        va_end(rest);                                                        \
        struct stat found;                                                   \
        if (flags & O_CREAT && below(path) && stat(path, &found)) {          \
            int code = strike(1);                                            \
            if (code > 0) FAIL(code);                                        \
            if (code < 0) { real(path, flags, mode); kill(getpid(), SIGKILL); } \
        }                                                                    \
        return real(path, flags, mode);                                      \
    }

OPENS(open)
OPENS(open64)
