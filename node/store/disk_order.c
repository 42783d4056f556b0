#include "shoal/disk.h"

#include "shoal/banned.h"

enum shoal_disk_step shoal_disk_order(bool (*carry_out)(void *arg, enum shoal_disk_step step), void *arg)
{
    if (!carry_out(arg, SHOAL_DISK_FLUSH)) /* D1 */
        return SHOAL_DISK_FLUSH;
    if (!carry_out(arg, SHOAL_DISK_RENAME))
        return SHOAL_DISK_RENAME;
    if (!carry_out(arg, SHOAL_DISK_FLUSH_FOLDER)) /* D2 */
        return SHOAL_DISK_FLUSH_FOLDER;
    return SHOAL_DISK_DONE;
}
