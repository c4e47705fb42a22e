package tool

import (
	"fmt"

	"github.com/outboard-dev/outboard"
)

// The input schemas are those of the Managed Agents wire, so that a call can also be answered by a worker written for it.

func bash() Def {
	return Def{
		Name: "bash",
		Description: "Run a command in a persistent bash shell inside the sandbox. The working directory, environment variables, " +
			"functions and background jobs survive from one call to the next; the shell starts in /workspace. " +
			"Standard output and standard error come back together, in order, followed by the exit code when it is not 0. " +
			"Output over 100,000 bytes is cut in the middle and kept whole in a file whose path is given. " +
			"A command has no terminal and no input: use non-interactive flags, and do not start editors or pagers. " +
			"It is stopped after timeout_ms (default 120000): run servers and other long jobs in the background with & and their " +
			"output in a file. Set restart to true for a fresh shell when this one is stuck or its state is unwanted; " +
			"background jobs end with it. Prefer read, write, edit, glob and grep for files. " +
			"The sandbox has no network but loopback unless its environment says otherwise. " +
			"Put files meant for the user in /mnt/session/outputs.",
		Class:     outboard.ClassEffect,
		MayChange: true,
		fields: []field{
			{name: "command", kind: str, about: "The command, or a script of several lines, for bash to run."},
			{name: "restart", kind: flag, about: "Replace the shell by a fresh one. With a command, the command runs in the new shell."},
			{name: "timeout_ms", kind: whole, min: 1, max: outboard.MaxBashTimeout.Milliseconds(),
				about: "Stop the command after this many milliseconds. Default 120000."},
		},
		check: func(a args) error {
			if _, ok := a["command"]; !ok && a["restart"] != true {
				return fmt.Errorf("command is required (a string), unless restart is true")
			}
			return nil
		},
	}.seal()
}

func read() Def {
	return Def{
		Name: "read",
		Description: "Read a file in the sandbox. Of a text file, the result has each line prefixed with its number and a tab. " +
			"Use view_range to read a part of a long file; the whole of it is read when view_range is left out. " +
			"Pictures (PNG, JPEG, GIF, WebP) and PDF files are shown to you as such, up to 5 MB and 8000 pixels on a side. " +
			"Relative paths are taken from /workspace. Directories cannot be read: use glob.",
		Class: outboard.ClassPure,
		fields: []field{
			{name: "file_path", kind: path, required: true, about: "Path of the file, best absolute."},
			{name: "view_range", kind: lines, about: "First and last line to read, both included, counted from 1: [start, end]."},
		},
	}.seal()
}

func write() Def {
	return Def{
		Name: "write",
		Description: "Write a file in the sandbox, creating it and its parent directories, or replacing all of its content. " +
			"Relative paths are taken from /workspace. To change a part of an existing file use edit.",
		Class:     outboard.ClassIdempotent,
		MayChange: true,
		fields: []field{
			{name: "file_path", kind: path, required: true, about: "Path of the file, best absolute."},
			{name: "content", kind: str, required: true, empty: true, about: "The whole new content."},
		},
	}.seal()
}

func edit() Def {
	return Def{
		Name: "edit",
		Description: "Replace a piece of text in a file in the sandbox. old_string must occur in the file exactly as given, spaces " +
			"and line breaks included, and only once: add surrounding lines until it is unique, or set replace_all to " +
			"replace every occurrence. Read the file first.",
		Class:     outboard.ClassEffect,
		MayChange: true,
		fields: []field{
			{name: "file_path", kind: path, required: true, about: "Path of the file, best absolute."},
			{name: "old_string", kind: str, required: true, about: "The text to replace, without the line numbers that read shows."},
			{name: "new_string", kind: str, required: true, empty: true, about: "The text to put in its place; empty to delete."},
			{name: "replace_all", kind: flag, about: "Replace every occurrence. Default false."},
		},
		check: func(a args) error {
			if a["old_string"] == a["new_string"] {
				return fmt.Errorf("new_string must differ from old_string")
			}
			return nil
		},
	}.seal()
}

func glob() Def {
	return Def{
		Name: "glob",
		Description: "Find files in the sandbox by a pattern such as **/*.go or src/*.test.ts, most recently changed first, " +
			"at most 200. ** stands for any number of directories.",
		Class: outboard.ClassPure,
		fields: []field{
			{name: "pattern", kind: path, required: true, about: "The pattern that paths below the directory must match."},
			{name: "path", kind: path, about: "The directory to search. Default /workspace."},
		},
	}.seal()
}

func grep() Def {
	return Def{
		Name: "grep",
		Description: "Search the content of files in the sandbox by a regular expression (RE2 syntax). Each hit is shown as " +
			"path:line:text. Binary files and version control directories are passed over.",
		Class: outboard.ClassPure,
		fields: []field{
			{name: "pattern", kind: str, required: true, about: "The regular expression."},
			{name: "path", kind: path, about: "The file or directory to search. Default /workspace."},
		},
	}.seal()
}

func webFetch() Def {
	return Def{
		Name: "web_fetch",
		Description: "Fetch a public web page or text document and return its readable text. Only http and https addresses that are " +
			"reachable from the internet work, without credentials: no private networks, no log-ins. Pages are not " +
			"rendered, so content that a script would load is missing. The sandbox has no part in this.",
		Class: outboard.ClassPure,
		Place: InControl,
		fields: []field{
			{name: "url", kind: str, required: true, about: "The full address, starting with https:// or http://."},
		},
	}.seal()
}
