/* The sockets of workers: who connects is a stranger until its HELLO has said which worker it is (workers_uv.c has the picture). */
#include "workers_state_uv.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shoal/worker_wire.h"

#include "shoal/banned.h"

#define LINKS_MAX 256
#define LISTEN_AGAIN_MS 100

static void on_link_closed(uv_handle_t *handle)
{
    struct worker_link *link = handle->data;

    (void)close(link->fd);
    free(link);
}

void worker_link_close(struct worker_link *link)
{
    struct workers *workers = link->workers;
    struct worker_link **at = &workers->links;

    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    workers->link_count--;
    (void)uv_poll_stop(&link->poll);
    uv_close((uv_handle_t *)&link->poll, on_link_closed);
}

/* False: the connection is closed. One that has shown a worker's token speaks for that worker alone. */
static bool on_worker_message(struct worker_link *link, const struct shoal_worker_message *message)
{
    struct workers *workers = link->workers;
    bool hello = message->kind == SHOAL_WORKER_HELLO;
    struct shoal_job_id job = hello ? message->hello.job : link->job;
    uint64_t worker_id = hello ? message->hello.worker_id : link->worker_id;
    struct worker_link *older;
    bool goes_on;

    if ((!hello && !link->known) ||
        (hello && link->known && (worker_id != link->worker_id || !shoal_job_id_equal(job, link->job))) ||
        (hello && !workers->options.knows(workers->options.arg, job, &message->hello))) {
        worker_link_close(link);
        return false;
    }
    older = workers_link_of(workers, worker_id);
    if (hello && older != NULL && older != link)
        worker_link_close(older);
    link->job = job;
    link->worker_id = worker_id;
    link->known = true;
    workers->heard = link;
    goes_on = workers->options.on_message(workers->options.arg, link->job, link->worker_id, message);
    workers->heard = NULL;
    if (!goes_on)
        worker_link_close(link);
    return goes_on;
}

static void on_worker_readable(uv_poll_t *poll, int status, int events)
{
    struct worker_link *link = poll->data;
    struct workers *workers = link->workers;

    (void)events;
    /* An error (the other end closed with something unread) is told once, and not polled any more: what it said is read to its
     * end. Else the rest is read in the next turn: level-triggered. */
    for (unsigned i = 0; status < 0 || i < TURN_MESSAGES_MAX; i++) {
        static uint8_t bytes[SHOAL_WORKER_MESSAGE_MAX];
        ssize_t len = recv(link->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

        if (len < 0 && (errno == ECONNRESET || errno == EINTR))
            continue;
        if (len < 0 && shoal_worker_recv_later(errno) && status >= 0)
            return;
        if (len <= 0 || shoal_worker_decode(shoal_view_of(bytes, (size_t)len), &workers->message) != SHOAL_OK) {
            worker_link_close(link);
            return;
        }
        if (!on_worker_message(link, &workers->message))
            return;
    }
}

void worker_links_hear(struct workers *workers, uint64_t worker_id)
{
    struct worker_link *link = workers_link_of(workers, worker_id);

    if (link != NULL && workers->heard == NULL)
        on_worker_readable(&link->poll, 0, 0);
}

/* The oldest that has shown no token, so that strangers take no place from workers. NULL: none. */
static struct worker_link *oldest_stranger(const struct workers *workers)
{
    struct worker_link *oldest = NULL;

    for (struct worker_link *link = workers->links; link != NULL; link = link->next)
        if (!link->known)
            oldest = link; /* the newest is first in the list */
    return oldest;
}

static void on_listen_timer(uv_timer_t *timer)
{
    struct workers *workers = timer->data;

    (void)uv_poll_start(&workers->listener_poll, UV_READABLE, worker_links_on_connect);
}

void worker_links_on_connect(uv_poll_t *poll, int status, int events)
{
    struct workers *workers = poll->data;
    struct worker_link *link;
    int fd;

    (void)status;
    (void)events;
    fd = accept4(workers->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) { /* it waits, and so do we */
            (void)uv_poll_stop(&workers->listener_poll);
            (void)uv_timer_start(&workers->listen_timer, on_listen_timer, LISTEN_AGAIN_MS, 0);
        }
        return;
    }
    link = oldest_stranger(workers);
    if (workers->link_count == LINKS_MAX && link != NULL)
        worker_link_close(link);
    link = workers->link_count < LINKS_MAX ? calloc(1, sizeof(*link)) : NULL;
    if (link == NULL) {
        (void)close(fd);
        return;
    }
    link->workers = workers;
    link->fd = fd;
    link->next = workers->links;
    workers->links = link;
    workers->link_count++;
    (void)uv_poll_init(workers->options.loop, &link->poll, fd);
    link->poll.data = link;
    (void)uv_poll_start(&link->poll, UV_READABLE, on_worker_readable);
}

void workers_send(struct workers *workers, uint64_t worker_id, const struct shoal_worker_message *message)
{
    static uint8_t bytes[SHOAL_WORKER_MESSAGE_MAX];
    struct worker_link *link = workers_link_of(workers, worker_id);
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    if (link == NULL || link->deaf || shoal_worker_encode(message, &w) != SHOAL_OK)
        return;
    if (message->kind == SHOAL_WORKER_EPOCH) {
        struct runner_link *runner = workers_runner_find(workers, link->job);
        uint64_t word = shoal_epoch_word(message->epoch.epoch);

        if (runner != NULL && runner->page != NULL && runner->published < word) {
            uint64_t seen = runner->published;

            runner->published = word;
            (void)atomic_compare_exchange_strong(&runner->page->published, &seen, word);
        }
    }
    if (send(link->fd, bytes, w.len, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
        return;
    link->deaf = true; /* it connects again and hears what it needs */
    (void)shutdown(link->fd, SHUT_RDWR); /* what it has said is read to its end, which closes it */
}
