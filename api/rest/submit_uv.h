/* A submit between its files: submit_uv.c takes the body and makes a bundle of it, submit_service.c knows what a service's
 * deployment adds, submit_job_uv.c makes the package of an ended job instead of a body. */
#ifndef API_SUBMIT_UV_H
#define API_SUBMIT_UV_H

#include <uv.h>

#include "shoal/bundle.h"

#include "api/http/multipart.h"
#include "args.h"
#include "package_check.h"
#include "routes.h"

struct upload {
    char name[256];
    struct shoal_buf small; /* until it grows: then it is the next write */
    int fd;                 /* -1: still small */
    uint64_t bytes;
};

struct submit_job;

struct submit {
    struct http_request *request;
    char service[PACKAGE_NAME_BYTES_MAX + 1]; /* as model.json has it */
    struct shoal_buf document;                /* of a service, with a NUL */
    const char *name;       /* of a service that is made of a job's model; NULL: the address has it, or model.json */
    struct submit_job *job; /* whose model is served; NULL: a package is sent */
    const char *from_job;   /* of /edimodels, once its body is read */
    struct multipart multipart;
    bool is_multipart;
    bool is_form;
    bool is_raw;  /* the body is the archive itself */
    bool in_data; /* the part being read is the field `data` */
    bool ticket_only;
    struct shoal_buf data;
    struct shoal_buf data_next; /* of a second `data` part */
    unsigned data_parts;
    struct upload upload;
    bool has_upload;
    uv_fs_t spool; /* that opens the upload's file */
    bool opening;
    uint64_t pending; /* bytes of writes under way */
    bool paused;
    bool whole; /* the body has ended */
    enum shoal_err write_err;
    struct shoal_msg write_msg;

    /* Of the thread. */
    uv_work_t work;
    struct args_result args;
    struct json_input *data_json;
    struct shoal_bundle_info info;
    int bundle_fd;
    struct shoal_buf bundle;
    enum shoal_err err;
    struct shoal_msg msg;
    struct shoal_submit submit;
    struct shoal_buf ticket;
};

/* WMLA's address of a deployment; or any address of one. */
bool submit_is_dlim(const struct http_request *request);
bool submit_is_service(const struct http_request *request);

/* WMLA's addresses at which an ended job's model is deployed; it begins stopped, as all of WMLA's. The second one is of them. */
bool submit_is_exec(const struct http_request *request);
bool submit_is_edi(const struct http_request *request);
/* The job whose model is to be served; NULL: a package is sent. */
const char *submit_job_of(struct http_request *request);

/* submit_uv.c. The upload's file is whole: what follows the body. */
void submit_go_on(struct submit *s);
void submit_refuse(struct submit *s, enum shoal_err err, const struct shoal_msg *msg);
/* A thread closes it; -1 is none. */
void submit_close_later(uv_loop_t *loop, int fd);

/* submit_job_uv.c. Makes the upload of the job's model, then calls submit_go_on(), or answers. */
void submit_job_begin(struct submit *s, const char *id);
void submit_job_free(struct submit_job *j);

/* submit_service.c. Which versions there may be, and how many replicas it begins with. */
SHOAL_MUST_CHECK enum shoal_err submit_read_service(struct submit *s, bool no_words, struct shoal_msg *msg);
/* In the thread: what was sent is an archive; the package is checked, and becomes the document of the service. */
SHOAL_MUST_CHECK enum shoal_err submit_check_archive(struct submit *s);
SHOAL_MUST_CHECK enum shoal_err submit_make_document(struct submit *s);

#endif
