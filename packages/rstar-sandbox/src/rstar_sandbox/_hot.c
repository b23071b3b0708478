/* The system calls around each fork, without the interpreter in between.
 *
 * Python code that runs right after a fork costs more than its time: every object it touches is a page that the
 * kernel has to copy. Optional: `hot.py` does the same in Python where this is not built.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

static int wait_for_ever(void *unused) {
    (void)unused;
    for (;;)
        pause();
    return 0;
}

/* new_namespace(stack_top) -> pid of the init; the caller's next fork is in its namespace. */
static PyObject *new_namespace(PyObject *self, PyObject *args) {
    unsigned long long top;
    if (!PyArg_ParseTuple(args, "K", &top))
        return NULL;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, restore = {.sa_handler = SIG_DFL};
    /* An init that ignores SIGCHLD has the orphans of its namespace reaped by the kernel. */
    sigaction(SIGCHLD, &ignore, NULL);
    int init = clone(wait_for_ever, (void *)(uintptr_t)top, CLONE_NEWPID | CLONE_VM | SIGCHLD, NULL);
    int number = errno;
    sigaction(SIGCHLD, &restore, NULL);
    if (init < 0) {
        errno = number;
        return failed("clone");
    }
    const char *call = "pidfd_open";
    int descriptor = (int)syscall(SYS_pidfd_open, init, 0);
    int result = descriptor;
    if (descriptor >= 0) {
        /* The kernel lets a process enter only namespaces of those it may look into; nobody else is there yet. */
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        call = "setns";
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
        return failed(call);
    }
    return PyLong_FromLong(init);
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

static int limit(int kind, rlim_t wanted) {
    struct rlimit now;
    if (getrlimit(kind, &now) < 0)
        return -1;
    if (now.rlim_max != RLIM_INFINITY && now.rlim_max < wanted)
        wanted = now.rlim_max;
    struct rlimit set = {wanted, wanted};
    return setrlimit(kind, &set);
}

static int drop_capabilities(void) {
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    return (int)syscall(SYS_capset, &header, none);
}

/* enter(out, err, channel, target, home, limits, user, drop, death, ruleset): what a child does first. */
static PyObject *enter(PyObject *self, PyObject *args) {
    int out, err, channel, target, drop, death, ruleset;
    long long user;
    const char *home;
    PyObject *limits;
    if (!PyArg_ParseTuple(args, "iiiisO!Lppi", &out, &err, &channel, &target, &home, &PyTuple_Type, &limits, &user,
                          &drop, &death, &ruleset))
        return NULL;
    if (arrange(out, err, channel, target, ruleset) < 0)
        return failed("descriptors");
    if (chdir(home) < 0)
        return failed("chdir");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(limits); i++) {
        int kind;
        unsigned long long wanted;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(limits, i), "iK", &kind, &wanted))
            return NULL;
        if (limit(kind, (rlim_t)wanted) < 0)
            return failed("setrlimit");
    }
    if (user >= 0) {
        uid_t id = (uid_t)user;
        if (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id, id, id) < 0)
            return failed("setresuid");
    } else if (drop && drop_capabilities() < 0) {
        return failed("capset");
    }
    if (death && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return failed("prctl");
    if (ruleset >= 0) {
        if (syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
            return failed("landlock_restrict_self");
        close(ruleset);
    }
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)
        return failed("prctl");
    Py_RETURN_NONE;
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
    {"enter", enter, METH_VARARGS, "Descriptors, folder, limits and rights of a child."},
    {"make_immortal", make_immortal, METH_O, "Objects, and what they refer to, whose use writes nothing into them."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "rstar_sandbox._hot", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void) {
    PyObject *made = PyModule_Create(&module);
    /* Raised with the signatures above: one that was built from older source is then not used. */
    if (made != NULL && PyModule_AddIntConstant(made, "INTERFACE", 2) < 0)
        Py_CLEAR(made);
    return made;
}
