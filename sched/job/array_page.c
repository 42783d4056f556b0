/* Questions about the tasks of an array, and their answers, as bytes between nodes: fixed fields in the order of the
 * structs of shoal/array.h. */
#include "shoal/array.h"

#include "shoal/wire.h"

#include "shoal/banned.h"

size_t shoal_tasks_ask_encode(const struct shoal_tasks_ask *ask, uint8_t bytes[SHOAL_TASKS_ASK_BYTES])
{
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_TASKS_ASK_BYTES);

    shoal_put_u32(&w, ask->after_index);
    shoal_put_u8(&w, ask->states);
    shoal_put_u16(&w, ask->limit);
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

enum shoal_err shoal_tasks_ask_decode(struct shoal_view bytes, struct shoal_tasks_ask *ask)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(ask != NULL);
    ask->after_index = shoal_get_u32(&r);
    ask->states = shoal_get_u8(&r);
    ask->limit = shoal_get_u16(&r);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

size_t shoal_tasks_page_encode(const struct shoal_tasks_page *page, uint8_t *bytes, size_t cap)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    SHOAL_ASSERT(page->row_count <= SHOAL_TASKS_PAGE_MAX);
    SHOAL_ASSERT(cap >= SHOAL_TASKS_PAGE_BYTES); /* a page fits, whatever it holds */
    shoal_put_u32(&w, page->next);
    shoal_put_u32(&w, page->row_count);
    for (uint32_t i = 0; i < page->row_count; i++) {
        const struct shoal_task_row *row = &page->rows[i];

        shoal_put_u32(&w, row->index);
        shoal_put_u8(&w, row->state);
        shoal_put_u8(&w, row->attempts);
        shoal_put_u32(&w, (uint32_t)row->exit_code);
        shoal_put_node_id(&w, row->node);
        shoal_put_u64(&w, row->start_ms);
        shoal_put_u64(&w, row->end_ms);
    }
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

enum shoal_err shoal_tasks_page_decode(struct shoal_view bytes, struct shoal_tasks_page *page)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(page != NULL);
    page->next = shoal_get_u32(&r);
    page->row_count = shoal_get_u32(&r);
    if (page->row_count > SHOAL_TASKS_PAGE_MAX)
        return SHOAL_ERR_MALFORMED;
    for (uint32_t i = 0; !r.failed && i < page->row_count; i++) {
        struct shoal_task_row *row = &page->rows[i];

        row->index = shoal_get_u32(&r);
        row->state = shoal_get_enum(&r, SHOAL_TASK_STATE_COUNT);
        row->attempts = shoal_get_u8(&r);
        row->exit_code = (int32_t)shoal_get_u32(&r);
        row->node = shoal_get_node_id(&r);
        row->start_ms = shoal_get_u64(&r);
        row->end_ms = shoal_get_u64(&r);
    }
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}
