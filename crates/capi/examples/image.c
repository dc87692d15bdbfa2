/*
 * Makes an image, fills it, makes a snapshot, sends it into a second image, and checks both.
 *
 *     cc image.c -I../include -L../../../target/release -lbutterfs -o image && ./image FOLDER
 */
#include <butterfs.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                   \
    do {                                                                                            \
        long result = (long)(call);                                                                 \
        if (result < 0) {                                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, butterfs_last_error());   \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                 \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* A stream in a file. */
static int stream_write(void *user, const uint8_t *data, size_t len)
{
    return fwrite(data, 1, len, user) == len ? 0 : -EIO;
}

static ssize_t stream_read(void *user, uint8_t *data, size_t len)
{
    size_t got = fread(data, 1, len, user);
    return got == 0 && ferror((FILE *)user) ? -EIO : (ssize_t)got;
}

/* A transaction that makes a file and then changes its mind. */
static int give_up(const butterfs_fs *fs, void *user)
{
    int *calls = user;
    ++*calls;
    TRY(butterfs_mkdir(fs, "half", 0755));
    return -ECANCELED;
}

static void print_finding(void *user, int is_error, const char *id, const char *sentence)
{
    (void)user;
    printf("%s %s: %s\n", is_error ? "error" : "warning", id, sentence);
}

static void must_be_clean(const butterfs_device *device)
{
    uint64_t errors;
    TRY(butterfs_check(&device, 1, BUTTERFS_CHECK_DATA, print_finding, NULL, &errors));
    CHECK(errors == 0);
}

static void write_file(const butterfs_fs *fs, const char *path, const char *content)
{
    butterfs_file *file;
    TRY(butterfs_file_open(fs, path, O_RDWR | O_CREAT | O_TRUNC, 0644, &file));
    TRY(butterfs_file_write(file, (const uint8_t *)content, strlen(content), 0));
    TRY(butterfs_file_sync(file));
    butterfs_file_close(file);
}

static butterfs_fs *make(const char *folder, const char *name, butterfs_device **device)
{
    char path[4096];
    butterfs_fs *fs;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    *device = butterfs_device_create(path, 512u << 20);
    CHECK(*device != NULL);
    TRY(butterfs_mkfs((const butterfs_device *const *)device, 1, name, 0));
    TRY(butterfs_open((const butterfs_device *const *)device, 1, NULL, 0, &fs));
    return fs;
}

static void fill(const butterfs_fs *fs)
{
    uint64_t id;
    TRY(butterfs_subvolume_create(fs, "home", &id));
    write_file(fs, "home/letter", "Dear Ada,\n");
    TRY(butterfs_symlink(fs, "letter", "home/link"));
    TRY(butterfs_chmod(fs, "home/link", 0600));
    TRY(butterfs_chown(fs, "home/letter", 1000, 1000, 0));
    TRY(butterfs_setxattr(fs, "home/letter", "user.origin", (const uint8_t *)"C", 1, 0));
    TRY(butterfs_reflink(fs, "home/letter", "home/copy"));

    butterfs_stat stat;
    TRY(butterfs_get_stat(fs, "home/link", 0, &stat));
    CHECK(stat.size == 10 && (stat.mode & 07777) == 0600 && stat.uid == 1000);
    TRY(butterfs_get_stat(fs, "home/link", BUTTERFS_NOFOLLOW, &stat));
    CHECK(stat.size == 6);

    uint8_t value[8];
    CHECK(butterfs_getxattr(fs, "home/letter", "user.origin", value, sizeof value, 0) == 1 && value[0] == 'C');
    CHECK(butterfs_getxattr(fs, "home/letter", "user.none", value, sizeof value, 0) == -ENODATA);

    /* Errors are numbers, and sentences for people. */
    CHECK(butterfs_mkdir(fs, "home", 0755) == -EEXIST);
    CHECK(strstr(butterfs_last_error(), "home") != NULL);
    CHECK(butterfs_mkdir(NULL, "x", 0755) == -EINVAL);

    int calls = 0;
    CHECK(butterfs_transaction(fs, give_up, &calls) == -ECANCELED && calls == 1);
    CHECK(butterfs_get_stat(fs, "half", 0, &stat) == -ENOENT);
}

static int list(const butterfs_fs *fs, const char *path)
{
    butterfs_dir *dir;
    butterfs_dirent entry;
    int count = 0, next;
    TRY(butterfs_dir_open(fs, path, &dir));
    while ((next = butterfs_dir_next(dir, &entry)) == 1) {
        printf("%s/%s\n", path, entry.name);
        ++count;
    }
    TRY(next);
    butterfs_dir_close(dir);
    return count;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    printf("libbutterfs %s\n", butterfs_version());

    butterfs_device *first, *second;
    butterfs_fs *source = make(argv[1], "first.img", &first);
    butterfs_fs *target = make(argv[1], "second.img", &second);
    fill(source);

    uint64_t snapshot;
    TRY(butterfs_snapshot(source, "home", "monday", BUTTERFS_READ_ONLY, &snapshot));
    FILE *stream = tmpfile();
    CHECK(stream != NULL);
    TRY(butterfs_send(source, snapshot, 0, stream_write, stream));
    rewind(stream);
    TRY(butterfs_receive(target, ".", stream_read, stream));
    fclose(stream);
    CHECK(list(target, "monday") == 3);

    char content[64];
    butterfs_file *file;
    TRY(butterfs_file_open(target, "monday/copy", O_RDONLY, 0, &file));
    CHECK(butterfs_file_read(file, (uint8_t *)content, sizeof content, 0) == 10 && !memcmp(content, "Dear Ada,\n", 10));
    CHECK(butterfs_file_write(file, (const uint8_t *)"x", 1, 0) == -EBADF);
    butterfs_file_close(file);

    butterfs_usage usage;
    TRY(butterfs_get_usage(target, &usage));
    printf("%llu of %llu bytes are used\n", (unsigned long long)usage.used, (unsigned long long)usage.total);
    TRY(butterfs_close(source));
    TRY(butterfs_close(target));
    must_be_clean(first);
    must_be_clean(second);
    butterfs_device_free(first);
    butterfs_device_free(second);
    return 0;
}
