/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of `stoker`. Each is one function in a file of its name: argv[0] is the command.
 * Return: exit status: 0 fine, 1 the answer is no or the data is bad, 2 wrong usage.
 */
#ifndef STOKER_COMMANDS_H
#define STOKER_COMMANDS_H

int stoker_write(int argc, char **argv);
int stoker_inspect(int argc, char **argv);
int stoker_verify(int argc, char **argv);
int stoker_plan(int argc, char **argv);
int stoker_cat(int argc, char **argv);
int stoker_bench(int argc, char **argv);

#endif
