package registry

import (
	"fmt"

	"github.com/outboard-dev/outboard"
)

// definitions are all tools, in the order a model is offered them.
var definitions = []Tool{bash(), read(), write(), edit(), glob(), grep(), webFetch(), webSearch(), todo()}

// The input schemas are those of the Managed Agents wire, so that a call can also be answered by a worker
// written for it.

func bash() Tool {
	return Tool{
		Name:  "bash",
		Shell: true, Subject: Command, Target: "command", Short: "command",
		Description: "Run a command in a persistent bash shell inside the sandbox. The working directory, " +
			"environment variables, " +
			"functions and background jobs survive from one call to the next; the shell starts in /workspace. " +
			"Standard output and standard error come back together, in order, followed by the exit code when it is " +
			"not 0. " +
			"Output over 100,000 bytes is cut in the middle and kept whole in a file whose path is given. " +
			"A command has no terminal and no input: use non-interactive flags, and do not start editors or pagers. " +
			"It is stopped after timeout_ms (default 120000): run servers and other long jobs in the background " +
			"with & and their " +
			"output in a file. Set restart to true for a fresh shell when this one is stuck or its state is unwanted; " +
			"background jobs end with it. Prefer read, write, edit, glob and grep for files. " +
			"The sandbox has no network but loopback unless its environment says otherwise. " +
			"Put files meant for the user in /mnt/session/outputs.",
		Class:     outboard.ClassEffect,
		MayChange: true,
		Fields: []Field{
			{Name: "command", Kind: Text, about: "The command, or a script of several lines, for bash to run."},
			{Name: "restart", Kind: Flag, about: "Replace the shell by a fresh one. With a command, the command " +
				"runs in the new shell."},
			{Name: "timeout_ms", Kind: Whole, min: 1, max: outboard.MaxBashTimeout.Milliseconds(),
				about: "Stop the command after this many milliseconds. Default 120000."},
		},
		check: func(a args) error {
			if _, ok := a["command"]; !ok && a["restart"] != true {
				return fmt.Errorf("command is required (a string), unless restart is true")
			}
			return nil
		},
		title: func(a args) string {
			if a["restart"] == true {
				return "(restart)"
			}
			return a.text("command")
		},
	}
}

func read() Tool {
	return Tool{
		Name:    "read",
		Subject: File, Target: "file_path", Short: "path",
		Description: "Read a file in the sandbox. Of a text file, the result has each line prefixed with its number " +
			"and a tab. " +
			"Use view_range to read a part of a long file; the whole of it is read when view_range is left out. " +
			"Pictures (PNG, JPEG, GIF, WebP) and PDF files are shown to you as such, up to 5 MB and 8000 pixels on " +
			"a side. " +
			"Relative paths are taken from /workspace. Directories cannot be read: use glob.",
		Class: outboard.ClassPure,
		Fields: []Field{
			{Name: "file_path", Step: "path", Kind: Path, Required: true, about: "Path of the file, best absolute."},
			{Name: "view_range", Kind: Lines, about: "First and last line to read, both included, counted from 1: " +
				"[start, end]."},
		},
	}
}

func write() Tool {
	return Tool{
		Name:    "write",
		Subject: File, Target: "file_path",
		Description: "Write a file in the sandbox, creating it and its parent directories, or replacing all of its " +
			"content. " +
			"Relative paths are taken from /workspace. To change a part of an existing file use edit.",
		Class:     outboard.ClassIdempotent,
		MayChange: true,
		Fields: []Field{
			{Name: "file_path", Step: "path", Kind: Path, Required: true, about: "Path of the file, best absolute."},
			{Name: "content", Kind: Text, Required: true, empty: true, nul: true, about: "The whole new content."},
		},
		title: func(a args) string {
			n := len(a.text("content"))
			return fmt.Sprintf("%s (%d %s)", ShortPath(a.text("file_path")), n, plural(n, "byte"))
		},
	}
}

func edit() Tool {
	return Tool{
		Name:    "edit",
		Subject: File, Target: "file_path", Replaced: "old_string", Replacement: "new_string",
		Description: "Replace a piece of text in a file in the sandbox. old_string must occur in the file exactly " +
			"as given, spaces " +
			"and line breaks included, and only once: add surrounding lines until it is unique, or set replace_all to " +
			"replace every occurrence. Read the file first.",
		Class:     outboard.ClassEffect,
		MayChange: true,
		Fields: []Field{
			{Name: "file_path", Step: "path", Kind: Path, Required: true, about: "Path of the file, best absolute."},
			{Name: "old_string", Step: "old", Kind: Text, Required: true,
				about: "The text to replace, without the line numbers that read shows."},
			{Name: "new_string", Step: "new", Kind: Text, Required: true, empty: true,
				about: "The text to put in its place; empty to delete."},
			{Name: "replace_all", Kind: Flag, about: "Replace every occurrence. Default false."},
		},
		check: func(a args) error {
			if a["old_string"] == a["new_string"] {
				return fmt.Errorf("new_string must differ from old_string")
			}
			return nil
		},
	}
}

func glob() Tool {
	return Tool{
		Name:    "glob",
		Subject: Directory, Target: "path", Globs: true, Short: "pattern",
		Description: "Find files in the sandbox by a pattern such as **/*.go or src/*.test.ts, most recently " +
			"changed first, " +
			"at most 200. ** stands for any number of directories.",
		Class: outboard.ClassPure,
		Fields: []Field{
			{Name: "pattern", Kind: Path, Required: true, about: "The pattern that paths below the directory must " +
				"match."},
			{Name: "path", Kind: Path, about: "The directory to search. Default /workspace."},
		},
	}
}

func grep() Tool {
	return Tool{
		Name:    "grep",
		Subject: Directory, Target: "path", Short: "pattern",
		Description: "Search the content of files in the sandbox by a regular expression (RE2 syntax). Each hit is " +
			"shown as " +
			"path:line:text. Binary files and version control directories are passed over.",
		Class: outboard.ClassPure,
		Fields: []Field{
			{Name: "pattern", Kind: Text, Required: true, about: "The regular expression."},
			{Name: "path", Kind: Path, about: "The file or directory to search. Default /workspace."},
		},
	}
}

func webFetch() Tool {
	return Tool{
		Name:    "web_fetch",
		Subject: Address, Target: "url", Leaves: true, Taint: outboard.Taint{Untrusted: true,
			Exfil: true}, Short: "url",
		Description: "Fetch a public web page or text document and return its readable text. Only http and https " +
			"addresses that are " +
			"reachable from the internet work, without credentials: no private networks, no log-ins. Pages are not " +
			"rendered, so content that a script would load is missing. The sandbox has no part in this.",
		Class: outboard.ClassPure,
		Place: InControl,
		Fields: []Field{
			{Name: "url", Kind: Text, Required: true, about: "The full address, starting with https:// or http://."},
		},
	}
}

func webSearch() Tool {
	return Tool{
		Name:   "web_search",
		Leaves: true, Unbuilt: "use web_fetch, or a custom tool",
		Class: outboard.ClassPure,
		Place: InControl,
	}
}

// plural is a word in the number of what is counted.
func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
