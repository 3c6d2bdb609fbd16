/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keysdoc yaml: prints config/stokerd.yaml, every key commented out at its default.
 * keysdoc check FILE: whether FILE is exactly that.
 * keysdoc man TEMPLATE: prints a man page; a line such as @stream@ becomes the keys of that table.
 * keysdoc stub TEMPLATE: prints a stub for Python; the line @KEYS@ becomes the stream's keys.
 * Run at build time: what is documented is what the parser's tables say.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/conf.h"

/* The lines of one table as a text for free(). */
static char *table_text(const struct stk_key_table *table, const char *format)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	stk_keys_print(table, format, out);
	return fclose(out) ? NULL : text;
}

/* "#key: value" and "# help" go under the example stream. */
static void print_stream_line(const char *line, FILE *out)
{
	if (!*line)
		fputc('\n', out);
	else if (line[1] == ' ')
		fprintf(out, "#    #%s\n", line + 1);
	else if (!strncmp(line, "#name:", 6))
		fputs("#  - name: example\n",
		      out); /* these two have no default, and must be given */
	else if (!strncmp(line, "#data:", 6))
		fputs("#    data: /srv/shards/example\n", out);
	else
		fprintf(out, "#    %s\n", line + 1);
}

static int print_yaml(FILE *out)
{
	_cleanup_(stk_freep) char *conf = table_text(&stkd_conf_table, "yaml");
	_cleanup_(stk_freep) char *stream = table_text(&stk_spec_table, "yaml");
	char *rest = stream, *line;

	if (!conf || !stream)
		return 1;
	fputs("# The configuration of stokerd, see stokerd.yaml(5). Every key is here, commented "
	      "out at\n"
	      "# its default. Files in stokerd.yaml.d/ are read after this one, in name order.\n\n",
	      out);
	fputs(conf, out);
	stream[strlen(stream) - 2] = '\0'; /* the last line without its end, and no empty one */
	while ((line = strsep(&rest, "\n")))
		print_stream_line(line, out);
	return 0;
}

static int check(const char *path)
{
	_cleanup_(stk_freep) char *want = NULL;
	size_t size, line = 1;
	FILE *out = open_memstream(&want, &size), *in = fopen(path, "re");
	int r = !out || !in || print_yaml(out) || fclose(out);

	for (size_t i = 0; !r && i <= size; i++) {
		int c = fgetc(in);

		if (c != (i < size ? (unsigned char)want[i] : EOF)) {
			fprintf(stderr,
				"%s:%zu: differs from the key tables; print it anew with: keysdoc "
				"yaml\n",
				path, line);
			r = 1;
		}
		line += c == '\n';
	}
	if (in)
		fclose(in);
	return r;
}

static int print_man(const char *path)
{
	static const struct {
		const char *line;
		const struct stk_key_table *table;
	} places[] = {{"@configuration@\n", &stkd_conf_table},
		      {"@stream@\n", &stk_spec_table},
		      {"@field@\n", &stk_spec_field_table}};
	FILE *in = fopen(path, "re");
	char line[4096];

	if (!in) {
		perror(path);
		return 1;
	}
	while (fgets(line, sizeof(line), in)) {
		size_t i = 0;

		while (i < STK_ARRAY_SIZE(places) && strcmp(line, places[i].line))
			i++;
		if (i < STK_ARRAY_SIZE(places))
			stk_keys_print(places[i].table, "scd", stdout);
		else
			fputs(line, stdout);
	}
	fclose(in);
	return fflush(stdout) ? 1 : 0;
}

static void print_type(const struct stk_key *key)
{
	switch (key->type) {
	case STK_KEY_U32:
	case STK_KEY_U64:
		fputs("int", stdout);
		return;
	case STK_KEY_SIZE:
	case STK_KEY_DURATION:
		fputs("int | str", stdout);
		return;
	case STK_KEY_BOOL:
		fputs("bool", stdout);
		return;
	case STK_KEY_STRING:
		fputs("str", stdout);
		return;
	case STK_KEY_ENUM:
		fputs("Literal[", stdout);
		for (int i = 0; key->names[i]; i++)
			printf("%s\"%s\"", i ? ", " : "", key->names[i]);
		putchar(']');
		return;
	default:
		fputs("Any", stdout);
	}
}

/* Name and data are the loader's first argument. */
static void print_stub_keys(void)
{
	for (size_t i = 0; i < stk_spec_table.nkeys; i++) {
		const struct stk_key *key = &stk_spec_table.keys[i];

		if (!strcmp(key->name, "name") || !strcmp(key->name, "data"))
			continue;
		printf("        %s: ", key->name);
		print_type(key);
		puts(" = ...,");
	}
}

static int print_stub(const char *path)
{
	FILE *in = fopen(path, "re");
	char line[4096];

	if (!in) {
		perror(path);
		return 1;
	}
	while (fgets(line, sizeof(line), in)) {
		if (!strcmp(line, "@KEYS@\n"))
			print_stub_keys();
		else
			fputs(line, stdout);
	}
	fclose(in);
	return fflush(stdout) ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "stub"))
		return print_stub(argv[2]);
	if (argc == 2 && !strcmp(argv[1], "yaml"))
		return print_yaml(stdout);
	if (argc == 3 && !strcmp(argv[1], "check"))
		return check(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "man"))
		return print_man(argv[2]);
	fprintf(stderr, "usage: keysdoc yaml | check FILE | man TEMPLATE\n");
	return 2;
}
