/* The C library: see README.md. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libgearman/gearman.h>

static void print_hex(const char *what, const gearman_task_st *task) {
    const unsigned char *data = gearman_task_data(task);
    size_t size = gearman_task_data_size(task);
    printf("%s %s ", gearman_task_function_name(task), what);
    for (size_t i = 0; i < size; i++) printf("%02x", data[i]);
    printf("\n");
}

static gearman_return_t on_complete(gearman_task_st *task) {
    print_hex("complete", task);
    return GEARMAN_SUCCESS;
}

static gearman_return_t on_data(gearman_task_st *task) {
    print_hex("data", task);
    return GEARMAN_SUCCESS;
}

static gearman_return_t on_warning(gearman_task_st *task) {
    print_hex("warning", task);
    return GEARMAN_SUCCESS;
}

static gearman_return_t on_exception(gearman_task_st *task) {
    print_hex("exception", task);
    return GEARMAN_SUCCESS;
}

static gearman_return_t on_status(gearman_task_st *task) {
    printf("%s status %u %u\n", gearman_task_function_name(task), gearman_task_numerator(task),
           gearman_task_denominator(task));
    return GEARMAN_SUCCESS;
}

static gearman_return_t on_fail(gearman_task_st *task) {
    printf("%s failed\n", gearman_task_function_name(task));
    return GEARMAN_SUCCESS;
}

static void *take_hex(char *text, size_t *size) {
    *size = strlen(text) / 2;
    char *data = malloc(*size + 1);
    for (size_t i = 0; i < *size; i++) {
        unsigned value;
        sscanf(text + 2 * i, "%2x", &value);
        data[i] = (char)value;
    }
    return data;
}

static int run_client(int port, int background, char **jobs) {
    gearman_client_st *client = gearman_client_create(NULL);
    gearman_return_t result;
    gearman_client_add_server(client, "127.0.0.1", (in_port_t)port);
    gearman_client_set_timeout(client, 20000);
    if (!background && !gearman_client_set_server_option(client, "exceptions", 10)) return 3;
    gearman_client_set_complete_fn(client, on_complete);
    gearman_client_set_data_fn(client, on_data);
    gearman_client_set_warning_fn(client, on_warning);
    gearman_client_set_status_fn(client, on_status);
    gearman_client_set_exception_fn(client, on_exception);
    gearman_client_set_fail_fn(client, on_fail);
    for (; *jobs != NULL; jobs++) {
        char *hex = strchr(*jobs, '=');
        size_t size;
        *hex++ = 0;
        void *data = take_hex(hex, &size);
        if (background) {
            gearman_job_handle_t handle;
            result = gearman_client_do_background(client, *jobs, NULL, data, size, handle);
            if (result == GEARMAN_SUCCESS) printf("%s created\n", *jobs);
        } else {
            gearman_client_add_task(client, NULL, NULL, *jobs, NULL, data, size, &result);
        }
        if (gearman_failed(result)) {
            fprintf(stderr, "%s\n", gearman_client_error(client));
            return 2;
        }
    }
    result = gearman_client_run_tasks(client);
    if (gearman_failed(result) && result != GEARMAN_WORK_FAIL && result != GEARMAN_WORK_EXCEPTION) {
        fprintf(stderr, "%s\n", gearman_client_error(client));
        return 2;
    }
    return 0;
}

static void *upper(gearman_job_st *job, void *context, size_t *size, gearman_return_t *result) {
    (void)context;
    *size = gearman_job_workload_size(job);
    const unsigned char *data = gearman_job_workload(job);
    char *answer = malloc(*size + 1);
    for (size_t i = 0; i < *size; i++) answer[i] = (char)(data[i] < 128 ? toupper(data[i]) : data[i]);
    *result = GEARMAN_SUCCESS;
    return answer;
}

static void *fail(gearman_job_st *job, void *context, size_t *size, gearman_return_t *result) {
    (void)job, (void)context, (void)size;
    *result = GEARMAN_WORK_FAIL;
    return NULL;
}

static void *raise_boom(gearman_job_st *job, void *context, size_t *size, gearman_return_t *result) {
    (void)context, (void)size;
    gearman_job_send_exception(job, "boom", 4);
    *result = GEARMAN_WORK_EXCEPTION;
    return NULL;
}

static void *progress(gearman_job_st *job, void *context, size_t *size, gearman_return_t *result) {
    (void)context;
    gearman_job_send_data(job, "part", 4);
    gearman_job_send_warning(job, "careful", 7);
    gearman_job_send_status(job, 1, 2);
    *size = 5;
    *result = GEARMAN_SUCCESS;
    return strdup("whole");
}

static void serve(gearman_worker_st *worker, const char *prefix, const char *name, gearman_worker_fn *function) {
    char full[512];
    snprintf(full, sizeof full, "%s-%s", prefix, name);
    gearman_worker_add_function(worker, full, 0, function, NULL);
}

static int run_worker(int port, const char *prefix) {
    gearman_worker_st *worker = gearman_worker_create(NULL);
    gearman_worker_add_server(worker, "127.0.0.1", (in_port_t)port);
    serve(worker, prefix, "upper", upper);
    serve(worker, prefix, "fail", fail);
    serve(worker, prefix, "raise", raise_boom);
    serve(worker, prefix, "progress", progress);
    while (1) {
        gearman_return_t result = gearman_worker_work(worker);
        if (gearman_failed(result) && result != GEARMAN_WORK_FAIL && result != GEARMAN_WORK_EXCEPTION) {
            fprintf(stderr, "%s\n", gearman_worker_error(worker));
            return 2;
        }
    }
}

int main(int count, char **arguments) {
    if (count < 4) return 64;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int port = atoi(arguments[1]);
    if (!strcmp(arguments[2], "worker")) return run_worker(port, arguments[3]);
    return run_client(port, !strcmp(arguments[3], "background"), arguments + 4);
}
