/* A device of the program's own: memory behind functions. Also what must be refused. */
#include <butterfs.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "%s:%d: not so: %s: %s\n", __FILE__, __LINE__, #condition, butterfs_last_error());  \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

#define LEN (768ull << 20)

static int released, fails;

static int mem_read(void *user, uint64_t offset, uint8_t *data, size_t len)
{
    memcpy(data, (char *)user + offset, len);
    return 0;
}

static int mem_write(void *user, uint64_t offset, const uint8_t *data, size_t len)
{
    if (fails)
        return -ENODEV;
    memcpy((char *)user + offset, data, len);
    return 0;
}

static void mem_release(void *user)
{
    (void)user;
    ++released;
}

static void *append(void *fs)
{
    butterfs_file *file;
    CHECK(butterfs_file_open(fs, "log", O_RDWR | O_APPEND | O_CREAT, 0644, &file) == 0);
    for (int i = 0; i < 100; ++i)
        CHECK(butterfs_file_write(file, (const uint8_t *)"0123456789", 10, 0) == 10);
    butterfs_file_close(file);
    return NULL;
}

int main(void)
{
    void *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    butterfs_device_ops ops = {
        .user = memory, .len = LEN, .read = mem_read, .write = mem_write, .release = mem_release
    };
    butterfs_device *device = butterfs_device_custom(&ops);
    const butterfs_device *devices[] = { device };
    butterfs_fs *fs;
    CHECK(butterfs_open(devices, 1, NULL, 0, &fs) < 0);
    CHECK(butterfs_mkfs(devices, 1, "own", 64) == -EINVAL);
    CHECK(butterfs_mkfs(devices, 1, "own", 0) == 0);
    CHECK(butterfs_mkfs(devices, 1, "own", 0) == -EEXIST);
    CHECK(butterfs_open(devices, 1, NULL, 0, &fs) == 0);
    butterfs_device_free(device);
    CHECK(released == 0);

    pthread_t threads[4];
    for (int i = 0; i < 4; ++i)
        CHECK(pthread_create(&threads[i], NULL, append, fs) == 0);
    for (int i = 0; i < 4; ++i)
        CHECK(pthread_join(threads[i], NULL) == 0);
    butterfs_stat stat;
    CHECK(butterfs_get_stat(fs, "/../../log", 0, &stat) == 0 && stat.size == 4000);

    butterfs_file *file;
    CHECK(butterfs_file_open(fs, "log", O_WRONLY, 0, &file) == -EINVAL);
    CHECK(butterfs_file_open(fs, "none", O_RDONLY, 0, &file) == -ENOENT);
    CHECK(butterfs_get_stat(fs, "log", 99, &stat) == -EINVAL);
    CHECK(butterfs_readlink(fs, "log", NULL, 0) == -EINVAL);
    CHECK(butterfs_close(NULL) == 0);

    /* Maintenance of an open filesystem. */
    uint64_t number = 1;
    CHECK(butterfs_set_label(fs, "renamed") == 0);
    CHECK(butterfs_resize_device(fs, 1, LEN / 2) == 0 && butterfs_resize_device(fs, 1, UINT64_MAX) == 0);
    CHECK(butterfs_resize_device(fs, 7, LEN) < 0);
    CHECK(butterfs_scrub(fs, 2, NULL, NULL, &number) == -EINVAL);
    CHECK(butterfs_scrub(fs, BUTTERFS_REPORT_ONLY, NULL, NULL, &number) == 0 && number == 0);
    CHECK(butterfs_discard_free_space(fs, 0, &number) == -EOPNOTSUPP);

    /* A device that fails ends writing, and the error arrives here. */
    CHECK(butterfs_sync(fs) == 0);
    fails = 1;
    CHECK(butterfs_mkdir(fs, "lost", 0755) == 0);
    CHECK(butterfs_sync(fs) < 0);
    CHECK(strlen(butterfs_last_error()) > 0);
    CHECK(butterfs_close(fs) < 0);
    CHECK(released == 1);
    puts("ok");
    return 0;
}
