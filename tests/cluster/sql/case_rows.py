# SPDX-License-Identifier: MIT
"""case_rows.py: hosts whose rows differ: other labels, few rows, none, late ones; several databases on
one daemon; prediction and evaluation on all hosts."""
from host import PASSWORD
from lab import train

AGREED = ("SELECT array_to_string(classes, ',') || ' ' || array_to_string(class_counts, ',') || ' ' || "
          "array_to_string(class_weights, ',') || ' ' || array_to_string(scale, ',') || ' ' || "
          "array_to_string(\"offset\", ',') || ' ' || rows FROM {}_summary")


# text labels, of which each host has some of its own
LABEL = "(ARRAY['west', 'north', 'south', 'east'])[c + 1]"


def _place(lab, table, where):
    """Host i gets those of all rows for which where(i) holds; host 1 has another table with all."""
    for h in lab.hosts:
        for name, condition in ((table, where(h.i)), (f"{table}_all", "true" if h.i == 1 else None)):
            if condition:
                h.sql(f"DROP TABLE IF EXISTS lab.{name}; CREATE TABLE lab.{name} AS SELECT i AS id, lab.image(i, c) "
                      f"AS image, {LABEL} AS label FROM (SELECT i, (i / 7 + i) % 4 AS c FROM "
                      f"generate_series(0, {lab.rows} - 1) i) s WHERE {condition}; "
                      f"GRANT SELECT ON lab.{name} TO trainer")


def disjoint(lab):
    """Labels that only one host has: the class map, weights and normalisation of one host with all rows."""
    tap = lab.tap
    tap.prefix = "disjoint labels: "
    _place(lab, "shards", lambda i: ["c IN (0, 3)", "c = 1", "c = 2"][i])
    more = {"dependent": "'label'", "independent": "'image'", "id_column": "'id'", "class_weight": "'balanced'",
            "normalization": "'standardize'", "epochs": 2, "reshuffle": "'on'"}
    s = lab.run(train("many", "SELECT * FROM shards", **more))
    one = lab.run(train("single", "SELECT * FROM shards_all", **more), at=1)
    if tap.ok(s.row() and one.row(), "both train", s.text(), one.text()):
        tap.equal(lab.hosts[0].sql(AGREED.format("many"), role="trainer"),
                  lab.hosts[1].sql(AGREED.format("single"), role="trainer"),
                  "three hosts agree on what one host with all rows finds")
    tap.prefix = ""


def uneven(lab):
    """A host with ten rows, one with none, and one whose rows come two seconds late."""
    tap = lab.tap
    tap.prefix = "uneven hosts: "
    for name, where in (("ten rows on one", lambda i: f"i % {lab.n} = {i}" if i != 1 else "i < 10"),
                        ("none on one", lambda i: f"i % 2 = {i // 2}" if i != 1 else "false"),
                        ("none on the coordinator", lambda i: f"i % 2 = {i - 1}" if i else "false")):
        _place(lab, "shards", where)
        rows = sum(int(h.sql("SELECT count(*) FROM lab.shards")) for h in lab.hosts)
        for merge in ({"merge": "'gradient'"}, {"merge": "'average'", "merge_every": "'4'"}):
            s = lab.run(train("uneven", "SELECT * FROM shards", dependent="'label'", independent="'image'",
                              epochs=3, reshuffle="'off'", **merge))
            row = s.row()
            tap.ok(row and row["rows"] == rows and row["hosts"] == lab.n and row["metrics"]["accuracy"] > .8,
                   f"{name}, {merge['merge']}", s.text())
    lab.hosts[1].sql("CREATE OR REPLACE VIEW lab.late AS SELECT r.* FROM (SELECT pg_sleep(2) OFFSET 0) s, rows r; "
                     "GRANT SELECT ON lab.late TO trainer")
    for i in (0, 2):
        lab.hosts[i].sql("CREATE OR REPLACE VIEW lab.late AS SELECT * FROM rows; GRANT SELECT ON lab.late TO trainer")
    s = lab.run(train("late_model", "SELECT * FROM late", dependent="'label'", independent="'image'", epochs=1))
    row = s.row()
    tap.ok(row and row["rows"] == lab.rows and 2 < s.seconds < 5, f"late rows ({s.seconds:.1f} s)", s.text())
    lab.clean()
    tap.prefix = ""


def everywhere(lab):
    """Prediction and evaluation read the rows of all hosts."""
    tap = lab.tap
    tap.prefix = "all hosts: "
    first = lab.hosts[0]
    lab.run(train("everywhere", epochs=4))
    s = lab.run("SELECT row_to_json(t) FROM gpu_cnn_evaluate('everywhere', 'rows', 'label', 'image') t")
    row = s.row()
    if tap.ok(row, "evaluation", s.text()):
        tap.equal((row["rows"], sum(map(sum, row["confusion"]))), (lab.rows, lab.rows), "counts the rows of all")
        right = sum(row["confusion"][i][i] for i in range(len(row["confusion"])))
        tap.ok(abs(right / lab.rows - row["metrics"]["accuracy"]) < 1e-6, "accuracy and confusion matrix agree")
    first.sql("DROP TABLE IF EXISTS lab.answers")
    s = lab.run("SELECT row_to_json(t) FROM gpu_cnn_predict('everywhere', 'rows', 'answers', 'image', 'id') t")
    tap.ok(s.row() and s.row()["rows"] == lab.rows, "prediction", s.text())
    tap.equal(first.sql("SELECT count(*), count(DISTINCT id) FROM answers", role="trainer"), f"{lab.rows}|{lab.rows}",
              "a prediction for each row of each host")
    wrong = ("SELECT count(*) FROM answers a WHERE class_value <> (ARRAY['north-west', 'north-east', 'south-west', "
             "'south-east'])[(a.id / 7 + a.id) % 4 + 1]")
    if row:
        tap.equal(int(first.sql(wrong, role="trainer")), lab.rows - right, "as many are right as the evaluation says")
    lab.clean()
    tap.prefix = ""


def databases(lab):
    """Three databases of one server are three segments of one cnnd."""
    tap = lab.tap
    tap.prefix = "three databases of one server: "
    first, node = lab.hosts[0], lab.hosts[1]
    # the list of the cluster is put aside
    first.sql("CREATE TABLE lab.kept AS SELECT * FROM gpu_cnn_nodes; "
              "DELETE FROM gpu_cnn_nodes")
    for k in range(3):
        name = f"segment{k}" if k else "postgres"
        if k:
            node.sql(f"CREATE DATABASE {name} TEMPLATE template0")
            with open("/run/lab/setup.sql") as f:
                # roles are there already
                text = "".join(line for line in f if not line.startswith(("CREATE ROLE", "ALTER ROLE")))
            node.sql(f"{text} SELECT lab.fill({k}, 3, {lab.rows})", database=name)
        first.sql(f"CREATE SERVER segment{k} FOREIGN DATA WRAPPER gpu_cnn OPTIONS (host '{node.address}', dbname "
                  f"'{name}'); GRANT USAGE ON FOREIGN SERVER segment{k} TO trainer; CREATE USER MAPPING FOR "
                  f"trainer SERVER segment{k} OPTIONS (user 'trainer', password '{PASSWORD}'); "
                  f"INSERT INTO gpu_cnn_nodes VALUES ({k}, 'segment{k}')")
    s = lab.run(train("segments", epochs=3))
    row = s.row()
    tap.ok(row and row["rows"] == lab.rows and row["hosts"] == 1 and row["metrics"]["accuracy"] > .8,
           "one daemon trains on the rows of all", s.text())
    first.sql("DELETE FROM gpu_cnn_nodes; INSERT INTO gpu_cnn_nodes SELECT * FROM lab.kept; DROP TABLE lab.kept")
    lab.clean()
    node.sql("DROP DATABASE segment1")
    node.sql("DROP DATABASE segment2")
    lab.next_works()
    tap.prefix = ""


CASES = [disjoint, uneven, everywhere, databases]
