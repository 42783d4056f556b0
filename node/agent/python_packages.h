/* What --setup-python installs, and .ci/setup where it is missing, which reads the lines below: the one place of these
 * versions. Hosts of one mesh need the same torch: engines of another one count otherwise, and a job leaves their host out. */
#ifndef AGENT_PYTHON_PACKAGES_H
#define AGENT_PYTHON_PACKAGES_H

#define PYTHON_TORCH "torch==2.13.0"
#define PYTHON_NUMPY "numpy==2.4.6"
#define PYTHON_SCIKIT_LEARN "scikit-learn==1.9.1" /* for the demo's model, and many scripts */
#define PYTHON_OLDEST "3.11"                      /* that all of them have a build for */

#endif
