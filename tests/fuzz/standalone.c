/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over files and folders of files, each byte-cut too, and says how many. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static unsigned long inputs;

/* The input lies at the end of its memory, so that a sanitizer sees one byte too many. */
static void run_input(const uint8_t *bytes, size_t size)
{
	uint8_t *copy = malloc(size);

	if (size && !copy)
		abort();
	if (size)
		memcpy(copy, bytes, size);
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
	inputs++;
}

static void run_file(const char *path)
{
	FILE *file = fopen(path, "re");
	uint8_t bytes[1 << 16];
	size_t size;

	if (!file) {
		perror(path);
		exit(1);
	}
	size = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	run_input(bytes, size);
	for (size_t cut = 0; cut < size; cut += 1 + size / 64)
		run_input(bytes, cut);
	for (size_t at = 0; at < size; at += 1 + size / 64) {
		uint8_t was = bytes[at];

		for (int bit = 0; bit < 8; bit++) {
			bytes[at] = (uint8_t)(was ^ 1 << bit);
			run_input(bytes, size);
		}
		bytes[at] = was;
	}
}

static void run_path(const char *path)
{
	struct dirent **entries;
	int n = scandir(path, &entries, NULL, alphasort);

	if (n < 0) {
		run_file(path);
		return;
	}
	for (int i = 0; i < n; i++) {
		char name[4096];

		snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
		if (entries[i]->d_name[0] != '.')
			run_file(name);
		free(entries[i]);
	}
	free(entries);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		run_path(argv[i]);
	printf("ok - %lu inputs\n", inputs);
	return inputs ? 0 : 1;
}
