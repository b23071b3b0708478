/* The system calls around each fork, without the interpreter in between, and the process that does nothing but fork.
 *
 * Python code that runs right after a fork costs more than its time: every object it touches is a page that the
 * kernel has to copy. Optional: `hot.py` and `families.py` do the same in Python where this is not built.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_landlock_restrict_self
#define SYS_landlock_restrict_self 446
#endif

static PyObject *failed(const char *call) {
    int number = errno;
    PyObject *error = PyObject_CallFunction(PyExc_OSError, "is", number, call);
    if (error != NULL) {
        PyErr_SetObject(PyExc_OSError, error);
        Py_DECREF(error);
    }
    return NULL;
}

/* The init of a namespace. It shares the memory of its maker but not the descriptors, which would stay open. */
static int wait_for_ever(void *unused) {
    (void)unused;
    syscall(SYS_close_range, 0, ~0U, 0);
    for (;;)
        pause();
    return 0;
}

/* Makes a PID namespace with an init on a stack of its own; the caller's next fork is in it. -1: `*call` failed. */
static int make_namespace(void *stack_top, const char **call) {
    struct sigaction ignore = {.sa_handler = SIG_IGN}, restore = {.sa_handler = SIG_DFL};
    /* An init that ignores SIGCHLD has the orphans of its namespace reaped by the kernel. */
    sigaction(SIGCHLD, &ignore, NULL);
    int init = clone(wait_for_ever, stack_top, CLONE_NEWPID | CLONE_VM | SIGCHLD, NULL);
    int number = errno;
    sigaction(SIGCHLD, &restore, NULL);
    if (init < 0) {
        *call = "clone";
        errno = number;
        return -1;
    }
    *call = "pidfd_open";
    int descriptor = (int)syscall(SYS_pidfd_open, init, 0);
    int result = descriptor;
    if (descriptor >= 0) {
        /* The kernel lets a process enter only namespaces of those it may look into; nobody else is there yet. */
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        *call = "setns";
        result = setns(descriptor, CLONE_NEWPID);
        number = errno;
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        close(descriptor);
        errno = number;
    }
    if (result < 0) {
        number = errno;
        kill(init, SIGKILL);
        errno = number;
        return -1;
    }
    return init;
}

/* new_namespace(stack_top) -> pid of the init; the caller's next fork is in its namespace. */
static PyObject *new_namespace(PyObject *self, PyObject *args) {
    unsigned long long top;
    if (!PyArg_ParseTuple(args, "K", &top))
        return NULL;
    const char *call = "";
    int init = make_namespace((void *)(uintptr_t)top, &call);
    return init < 0 ? failed(call) : PyLong_FromLong(init);
}

static int close_between(unsigned first, unsigned last) {
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return 0;
    if (errno != ENOSYS) /* before Linux 5.9 */
        return -1;
    for (unsigned descriptor = first; descriptor <= last && descriptor < 65536; descriptor++)
        close((int)descriptor);
    return 0;
}

static int arrange(int out, int err, int channel, int target, int kept) {
    if (setsid() < 0 && errno != EPERM)
        return -1;
    if (dup3(channel, target, O_CLOEXEC) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        return -1;
    int before = 2;
    int low = kept >= 0 && kept < target ? kept : target, high = kept > target ? kept : target;
    for (int i = 0; i < 2; i++) {
        int stop = i ? high : low;
        if (stop > before + 1 && close_between(before + 1, stop - 1) < 0)
            return -1;
        before = stop;
    }
    return close_between(before + 1, ~0U);
}

static int limit(int kind, rlim_t wanted, rlim_t more) {
    struct rlimit now;
    if (getrlimit(kind, &now) < 0)
        return -1;
    /* More than is allowed already cannot be had. */
    rlim_t hard = now.rlim_max != RLIM_INFINITY && now.rlim_max < wanted + more ? now.rlim_max : wanted + more;
    struct rlimit set = {wanted < hard ? wanted : hard, hard};
    return setrlimit(kind, &set);
}

static int drop_capabilities(void) {
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    return (int)syscall(SYS_capset, &header, none);
}

struct rights {
    int channel, drop, death, ruleset;
    long long user;
    const char *home;
    Py_ssize_t limits;
    struct {
        int kind;
        unsigned long long wanted;
    } limit[8];
};

/* What a child does first: descriptors, folder, limits, rights. -1: `*call` failed. */
static int give_up(const struct rights *rights, int out, int err, int channel, const char **call) {
    *call = "descriptors";
    if (arrange(out, err, channel, rights->channel, rights->ruleset) < 0)
        return -1;
    *call = "chdir";
    if (chdir(rights->home) < 0)
        return -1;
    *call = "setrlimit";
    for (Py_ssize_t i = 0; i < rights->limits; i++)
        if (limit(rights->limit[i].kind, (rlim_t)rights->limit[i].wanted, 0) < 0)
            return -1;
    if (rights->user >= 0) {
        uid_t id = (uid_t)rights->user;
        *call = "setresuid";
        if (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id, id, id) < 0)
            return -1;
    } else if (rights->drop) {
        *call = "capset";
        if (drop_capabilities() < 0)
            return -1;
    }
    *call = "prctl";
    if (rights->death && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return -1;
    if (rights->ruleset >= 0) {
        *call = "landlock_restrict_self";
        if (syscall(SYS_landlock_restrict_self, rights->ruleset, 0) < 0)
            return -1;
        close(rights->ruleset);
    }
    *call = "prctl";
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

/* (channel, home, limits, user, drop, death, ruleset), as `hot.py` explains them; home and limits stay the tuple's. */
static int read_rights(PyObject *tuple, struct rights *rights) {
    PyObject *limits;
    if (!PyArg_ParseTuple(tuple, "isO!Lppi", &rights->channel, &rights->home, &PyTuple_Type, &limits, &rights->user,
                          &rights->drop, &rights->death, &rights->ruleset))
        return -1;
    rights->limits = PyTuple_GET_SIZE(limits);
    if (rights->limits > (Py_ssize_t)(sizeof(rights->limit) / sizeof(rights->limit[0]))) {
        PyErr_SetString(PyExc_ValueError, "too many limits");
        return -1;
    }
    for (Py_ssize_t i = 0; i < rights->limits; i++)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(limits, i), "iK", &rights->limit[i].kind, &rights->limit[i].wanted))
            return -1;
    return 0;
}

/* enter(out, err, channel, rights): what a child does first. */
static PyObject *enter(PyObject *self, PyObject *args) {
    int out, err, channel;
    PyObject *tuple;
    struct rights rights;
    if (!PyArg_ParseTuple(args, "iiiO!", &out, &err, &channel, &PyTuple_Type, &tuple) || read_rights(tuple, &rights) < 0)
        return NULL;
    const char *call = "";
    if (give_up(&rights, out, err, channel, &call) < 0)
        return failed(call);
    Py_RETURN_NONE;
}

/* What a forker answers: first that a child is there, then that it and its namespace are gone. `forker.py` reads both
 * as native 64-bit integers. */
struct made {
    int64_t error, pid, init, wall_ns, cpu_ns;
};
struct ended {
    int64_t wait_status, user_us, system_us, peak_kib, left, at_ns, wall_ns, cpu_ns;
};

static int64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t microseconds(struct timeval time) { return (int64_t)time.tv_sec * 1000000 + time.tv_usec; }

static void answer(int control, void *content, size_t size, const int *descriptors, int count) {
    struct iovec part = {content, size};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } attached;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = &attached;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *first = CMSG_FIRSTHDR(&message);
        first->cmsg_level = SOL_SOCKET;
        first->cmsg_type = SCM_RIGHTS;
        first->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(first), descriptors, count * sizeof(int));
    }
    while (sendmsg(control, &message, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            _exit(0); /* the slot is gone */
}

/* Processes that are left of a call: by the file that counts the tasks of the slot's group, `others` of which are not
 * the call's, or else by /proc, where what the kernel hides is not the call's either. */
static int64_t count_left(int tasks, int others, int init) {
    int64_t count = 0;
    if (tasks >= 0) {
        char text[32];
        ssize_t length = pread(tasks, text, sizeof(text) - 1, 0);
        text[length > 0 ? length : 0] = 0;
        count = atoll(text) - others;
        return count > 0 ? count : 0;
    }
    DIR *folder = opendir("/proc");
    if (folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int pid = atoi(entry->d_name);
        count += pid > 1 && pid != init && pid != getpid(); /* 1 is the slot */
    }
    closedir(folder);
    return count;
}

static void end_namespace(int init) {
    kill(init, SIGKILL);
    for (;;) {
        pid_t pid = waitpid(-1, NULL, 0);
        if (pid == init || (pid < 0 && errno != EINTR))
            return;
    }
}

/* Reaps a child, ends its namespace, and says so. */
static void see_off(int control, pid_t pid, int init, int tasks, int others) {
    int status = 0;
    struct rusage usage;
    while (wait4(pid, &status, 0, &usage) < 0)
        if (errno != EINTR)
            _exit(1);
    int64_t at = nanoseconds(CLOCK_MONOTONIC), cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
    int64_t left = count_left(tasks, others, init);
    end_namespace(init);
    struct ended ended = {status,
                          microseconds(usage.ru_utime),
                          microseconds(usage.ru_stime),
                          usage.ru_maxrss,
                          left,
                          at,
                          nanoseconds(CLOCK_MONOTONIC) - at,
                          nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu};
    answer(control, &ended, sizeof(ended), NULL, 0);
}

static int read_exactly(int descriptor, char *into, size_t count) {
    while (count) {
        ssize_t got = recv(descriptor, into, count, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        into += got;
        count -= (size_t)got;
    }
    return 0;
}

/* What a forker's child is sent first; then standard input and the program, or content that Python reads.
 * `forker.py` writes it. */
struct order {
    int64_t is_program, memory_bytes;
    double cpu_seconds;
    int64_t stdin_size, size;
};

/* Standard input with this content, which comes over the channel. */
static int give_stdin(int channel, int64_t left) {
    if (!left)
        return 0; /* it is empty as it is */
    int file = memfd_create("stdin", 0);
    if (file < 0) /* refused where nothing bounds such files */
        file = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    char part[16384];
    while (file >= 0 && left > 0) {
        size_t size = left < (int64_t)sizeof(part) ? (size_t)left : sizeof(part);
        if (read_exactly(channel, part, size) < 0)
            _exit(0);
        left -= (int64_t)size;
        for (char *from = part; size;) {
            ssize_t done = write(file, from, size);
            if (done < 0)
                return -1;
            from += done;
            size -= (size_t)done;
        }
    }
    if (file < 0 || lseek(file, 0, SEEK_SET) < 0 || dup2(file, 0) < 0)
        return -1;
    return close(file);
}

static int limit_program(const struct order *order, long long mapped) {
    rlim_t seconds = (rlim_t)(order->cpu_seconds + (double)nanoseconds(CLOCK_PROCESS_CPUTIME_ID) / 1e9 + 0.999);
    /* The kernel kills at the hard limit a program that shrugs off SIGXCPU at the soft one. */
    return limit(RLIMIT_AS, (rlim_t)(mapped + order->memory_bytes), 0) < 0 ||
                   limit(RLIMIT_CPU, seconds > 1 ? seconds : 1, 1) < 0
               ? -1
               : 0;
}

static int say_begin(int channel) {
    char line[64];
    int length = snprintf(line, sizeof(line), "BEGIN %lld %lld\n", (long long)nanoseconds(CLOCK_MONOTONIC),
                          (long long)nanoseconds(CLOCK_PROCESS_CPUTIME_ID));
    return write(channel, line, (size_t)length) == length ? 0 : -1;
}

/* What a child does until its program begins; everything here would cost several pages each in Python. */
static PyObject *be_child(const struct rights *rights, const int *ends, long long mapped, PyObject *seed, int hooks,
                          int begin) {
    const char *call = "";
    if (hooks) {
        PyOS_BeforeFork();
        PyOS_AfterFork_Child();
    }
    if (give_up(rights, ends[0], ends[1], ends[2], &call) < 0)
        return failed(call);
    struct order order;
    if (read_exactly(rights->channel, (char *)&order, sizeof(order)) < 0)
        _exit(0); /* the slot has closed the channel */
    if (order.is_program) {
        if (give_stdin(rights->channel, order.stdin_size) < 0)
            return failed("standard input");
    }
    char *content = PyMem_RawMalloc(order.size > 0 ? (size_t)order.size : 1);
    if (content == NULL)
        return PyErr_NoMemory();
    if (read_exactly(rights->channel, content, (size_t)order.size) < 0)
        _exit(0);
    PyObject *result = order.is_program ? PyUnicode_DecodeUTF8(content, order.size, "surrogatepass")
                                        : PyBytes_FromStringAndSize(content, order.size);
    PyMem_RawFree(content);
    if (result != NULL && order.is_program) {
        /* Only now: that there is no memory for the text itself would be no fault of the program. */
        if (mapped >= 0 && limit_program(&order, mapped) < 0) {
            failed("setrlimit");
            Py_CLEAR(result);
            return NULL;
        }
        PyObject *done = PyObject_CallNoArgs(seed);
        if (done == NULL)
            Py_CLEAR(result);
        Py_XDECREF(done);
        if (result != NULL && begin && say_begin(rights->channel) < 0) {
            failed("begin");
            Py_CLEAR(result);
        }
    }
    return result;
}

/* serve_forks(control, stack_top, namespace, tasks, others, rights, mapped, seed, hooks, begin) -> in each child, str or
 * bytes.
 *
 * For each byte that comes over `control` forks a child in a PID namespace of its own and answers `made` with the
 * ends for the slot of three streams: output, error, channel. When the child has ended, by itself or killed, its
 * namespace is ended too, and the answer is `ended`. Returns in a child only, when that has given up its rights and
 * got what the slot sends: a program, with its limits and standard input set, `seed` called and, if `begin` says so, the
 * mark that it begins written; or content that is Python's to read.
 *
 * The process that calls this has one thread and holds no lock, and so does each child: there is nothing to repair in a
 * child, and the interpreter's own preparations (PyOS_AfterFork_Child and what modules registered), which write to some
 * hundred pages, are left out unless `hooks` asks for them. */
static PyObject *serve_forks(PyObject *self, PyObject *args) {
    unsigned long long top;
    long long mapped;
    int control, own, tasks, others, hooks, begin;
    PyObject *tuple, *seed;
    struct rights rights;
    if (!PyArg_ParseTuple(args, "iKiiiO!LOpp", &control, &top, &own, &tasks, &others, &PyTuple_Type, &tuple, &mapped,
                          &seed, &hooks, &begin) ||
        read_rights(tuple, &rights) < 0)
        return NULL;
    /* A handler of the interpreter's would be that of an init too, which shares the memory and does not run Python. */
    struct sigaction interrupt, standard = {.sa_handler = SIG_DFL};
    sigaction(SIGINT, &standard, &interrupt);
    for (;;) {
        char order;
        ssize_t got = read(control, &order, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            _exit(0);
        int64_t cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID), wall = nanoseconds(CLOCK_MONOTONIC);
        int out[2] = {-1, -1}, err[2] = {-1, -1}, channel[2] = {-1, -1}, init = -1;
        pid_t pid = -1;
        const char *call = "";
        if (pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0 &&
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0 &&
            fcntl(out[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(err[0], F_SETFL, O_NONBLOCK) == 0 &&
            (init = make_namespace((void *)(uintptr_t)top, &call)) >= 0)
            pid = fork();
        if (pid == 0) {
            int ends[3] = {out[1], err[1], channel[1]};
            sigaction(SIGINT, &interrupt, NULL);
            return be_child(&rights, ends, mapped, seed, hooks, begin);
        }
        int error = pid < 0 ? errno : 0;
        if (init >= 0 && setns(own, CLONE_NEWPID) < 0)
            _exit(1); /* no further child could be made; the slot is replaced */
        if (pid < 0 && init >= 0)
            end_namespace(init);
        close(out[1]);
        close(err[1]);
        close(channel[1]);
        int ends[3] = {out[0], err[0], channel[0]};
        struct made made = {error, pid, init, nanoseconds(CLOCK_MONOTONIC) - wall,
                            nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu};
        answer(control, &made, sizeof(made), ends, error ? 0 : 3);
        for (int i = 0; i < 3; i++)
            close(ends[i]);
        if (pid > 0)
            see_off(control, pid, init, tasks, others);
    }
}

/* Objects whose reference count nobody writes to, since CPython 3.12; before, and where there is no interpreter lock, the
 * count is written on each use. */
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define HAS_IMMORTALS 1

struct pending {
    PyObject **objects;
    Py_ssize_t count, room;
    long long made;
};

static int make_one_immortal(PyObject *object, void *argument) {
    struct pending *pending = argument;
    if (object == NULL || _Py_IsImmortal(object))
        return 0;
    if (PyObject_IS_GC(object)) {
        if (pending->count == pending->room) {
            Py_ssize_t room = pending->room ? 2 * pending->room : 4096;
            PyObject **more = PyMem_RawRealloc(pending->objects, (size_t)room * sizeof(PyObject *));
            if (more == NULL)
                return -1;
            pending->objects = more;
            pending->room = room;
        }
        pending->objects[pending->count++] = object;
    }
    /* Not Py_SET_REFCNT, which leaves alone what it should change. */
    object->ob_refcnt = _Py_IMMORTAL_REFCNT;
    pending->made++;
    return 0;
}
#else
#define HAS_IMMORTALS 0
#endif

/* make_immortal(objects) -> how many objects are immortal now that were not: these and all that they refer to. */
static PyObject *make_immortal(PyObject *self, PyObject *objects) {
#if HAS_IMMORTALS
    if (!PyList_Check(objects)) {
        PyErr_SetString(PyExc_TypeError, "a list of objects is needed");
        return NULL;
    }
    struct pending pending = {NULL, 0, 0, 0};
    int result = 0;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_GET_SIZE(objects); i++) {
        result = make_one_immortal(PyList_GET_ITEM(objects, i), &pending);
        while (result == 0 && pending.count > 0) {
            PyObject *object = pending.objects[--pending.count];
            traverseproc traverse = Py_TYPE(object)->tp_traverse;
            if (traverse != NULL)
                result = traverse(object, make_one_immortal, &pending);
        }
    }
    PyMem_RawFree(pending.objects);
    if (result != 0)
        return PyErr_NoMemory();
    return PyLong_FromLongLong(pending.made);
#else
    return PyLong_FromLong(0);
#endif
}

static PyMethodDef methods[] = {
    {"new_namespace", new_namespace, METH_VARARGS, "Makes a PID namespace with an init; the next fork is in it."},
    {"serve_forks", serve_forks, METH_VARARGS, "Forks children on request; returns in each of them only."},
    {"enter", enter, METH_VARARGS, "Descriptors, folder, limits and rights of a child."},
    {"make_immortal", make_immortal, METH_O, "Objects, and what they refer to, whose use writes nothing into them."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "rstar_sandbox._hot", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void) {
    PyObject *made = PyModule_Create(&module);
    /* Raised with the signatures above: one that was built from older source is then not used. */
    if (made != NULL && PyModule_AddIntConstant(made, "INTERFACE", 4) < 0)
        Py_CLEAR(made);
    return made;
}
